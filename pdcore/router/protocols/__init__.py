"""Handshake protocols: what the legs of a request carry, one module each behind :class:`~.base.Handshake`."""
