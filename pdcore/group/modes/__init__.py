"""Modes: one complete set of engine, KV transport and router each, as data, and what they make of a role."""
