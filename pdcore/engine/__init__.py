"""An instance: the leader that speaks HTTP, its ranks that compute, and the KV hand-off between ranks."""
