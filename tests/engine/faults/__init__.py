"""Faults of peers, as a rank meets them."""
