"""``python -m pdcore.registry.facade``: see :mod:`pdcore.registry.facade.command`."""

from pdcore.starting import start

if __name__ == "__main__":
    start("pdcore.registry.facade.command:main")
