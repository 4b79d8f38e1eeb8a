"""``python -m pdcore.router``: see :mod:`pdcore.router.command`."""

from pdcore.starting import start

if __name__ == "__main__":
    start("pdcore.router.command:main")
