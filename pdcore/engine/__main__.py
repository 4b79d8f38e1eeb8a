"""``python -m pdcore.engine``: see :mod:`pdcore.engine.command`."""

from pdcore.starting import start

if __name__ == "__main__":
    start("pdcore.engine.command:main")
