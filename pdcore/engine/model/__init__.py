"""The model: its directory's config and tokenizer (no tensors), and the torch code that computes it."""
