"""The router beside other routers, in one interleaved run: CPU per request and per chunk, latency, memory.

Router on core 0, fake engines and load on core 1, everything on loopback. Where a peer is not installed, the figures
are printed without it.
"""
