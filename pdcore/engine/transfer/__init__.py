"""The KV hand-off between a prefill rank and a decode rank: one-sided writes, fenced memory, no shared clock.

Reading order: ``states`` and ``slot`` (what is said), ``plan`` and ``wire`` (how), ``receive_ledger`` and
``send_ledger`` (the decisions, no I/O), ``engine`` (the seam), ``shm``, ``tcp`` and ``mooncake`` (behind it),
``offered`` (several as one), ``receiving`` and ``sending`` (the two sessions a rank's loop drives).
"""
