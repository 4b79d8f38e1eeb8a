"""An instance: the leader that speaks HTTP, its ranks that compute, and the KV hand-off between ranks."""

import os

# torch imports every installed device plug-in, and one whose driver is missing makes `import torch` itself fail.
# Which plug-in is loaded is chosen in device.py, so this must stand before anything here imports torch.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

# torch's threads wait for each other at the end of every operation. Spinning there, the default, takes the very cores
# the others need as soon as ranks, router or store share the machine: a step then took up to eight times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
