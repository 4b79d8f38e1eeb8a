"""The bootstrap protocol over HTTP, for engines that speak it, answered from the keyspace.

A native prefill leader serves it for its own ranks (:mod:`pdcore.registry.facade.own`). For an engine whose ranks are
all foreign, ``python -m pdcore.registry.facade`` is the parent process that registers them
(:mod:`pdcore.registry.facade.foreign`).
"""
