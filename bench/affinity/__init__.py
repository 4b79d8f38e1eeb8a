"""Which prefill instance finds a prompt's beginning in its cache, by policy and number of routers: a simulation."""
