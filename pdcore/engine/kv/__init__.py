"""The KV cache of one rank: the bytes' layout, the accounting of blocks, the tensor over them."""
