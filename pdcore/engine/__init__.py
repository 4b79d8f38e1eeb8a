"""An instance: the leader that speaks HTTP, its ranks that compute, and the KV hand-off between ranks."""

import os

# torch imports every installed device plug-in, and one whose driver is missing makes `import torch` itself fail.
# Which plug-in is loaded is chosen in device.py, so this must stand before anything here imports torch.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
