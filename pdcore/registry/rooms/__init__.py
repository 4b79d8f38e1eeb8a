"""The room directory: which DP rank of a prefill instance took a room, when the router did not choose it.

A prefill leader says so with a :class:`~pdcore.registry.rooms.writer.RoomWriter`, a decode leader asks a
:class:`~pdcore.registry.rooms.readers.RoomReader`. The entries are ``/pdcore/{cluster}/side/rooms/{instance_id}/{room}``
→ dp_rank, in the keyspace's store or, where one is configured, in a Redis. A room is there from its put until at most
a minute after its release, whatever happens to whoever put it.
"""
