"""The command ``pdcore``, also as ``python -m pdcore``."""

from pdcore.starting import start


def main() -> None:
    """Run the command; never returns normally."""
    start("pdcore.cli:main", prog_name="pdcore")


if __name__ == "__main__":
    main()
