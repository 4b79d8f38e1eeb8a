"""The command ``pdcore``, also as ``python -m pdcore``. Ctrl-C is quiet from the first moment, while modules still load."""

import sys


def main() -> None:
    """Run the command; never returns normally."""
    try:
        from pdcore.cli import main as command

        command(prog_name="pdcore")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
