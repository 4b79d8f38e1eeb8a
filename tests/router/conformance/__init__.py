"""The conformance kit: scriptable engines of every handshake, each fault at each step, and what must hold afterwards.

``engines`` speak a protocol as strict engines do, ``faults`` break their answers, ``rig`` puts a router in front and
knows the invariants. Where the known ways to fail are tried, in the kit unless a file is named:

=============================================  =====================================================================
a leg answers 4xx, 5xx, dies, or sends garbage  ``test_faults`` (each protocol, leg and step)
silence                                         ``test_faults``; a frozen engine: ``tests/router/test_suspects.py``
prefill fails, decode waits; and the reverse    ``test_faults``, ``test_bursts``, ``test_crowds``
an engine restarts behind its address           ``test_faults``, ``test_bootstrap_server``
decode dies within a stream                     ``test_faults``, ``test_every_byte``
a client leaves in any phase                    ``test_both_legs_end``, ``test_cancelled``, ``test_crowds``
the router stops                                ``test_both_legs_end``; its process: ``tests/router/test_process.py``
retries under fresh names                       ``test_retries``, ``test_two_hops``; more: ``tests/router/test_retries.py``
prompt lists, samples, rooms for each           ``test_served``
a rewritten prefill leg contradicts itself      ``test_served``, ``tests/router/protocols/test_prefill_only.py``
silent recomputation by decode                  ``test_two_hops``
request ids that clients share                  ``test_served``, ``test_bursts``
an engine's callbacks: twice, garbage, forged   ``test_metaserver``, ``tests/router/test_callbacks.py``
addresses and internal fields from clients      ``tests/router/test_failures.py``
slow readers, slow engines                      ``test_slowness``; odd clients: ``tests/router/test_clients.py``
=============================================  =====================================================================
"""
