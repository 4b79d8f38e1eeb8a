"""How one of several candidates is chosen: a module per policy behind :class:`~.base.Policy`."""
