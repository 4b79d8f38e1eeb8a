"""``python -m pdcore`` is the command ``pdcore``."""

from pdcore.cli import main

if __name__ == "__main__":
    main(prog_name="pdcore")
