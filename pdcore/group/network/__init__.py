"""What KV moves over."""
