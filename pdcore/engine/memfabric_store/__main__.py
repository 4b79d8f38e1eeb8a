"""``python -m pdcore.engine.memfabric_store``: see :mod:`pdcore.engine.memfabric_store.command`."""

from pdcore.starting import start

if __name__ == "__main__":
    start("pdcore.engine.memfabric_store.command:main")
