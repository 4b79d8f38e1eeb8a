"""Say in one line which build of torch this environment got, and how much disk it takes."""

from __future__ import annotations

from importlib.metadata import distribution


def main() -> None:
    torch = distribution("torch")
    files = (torch.locate_file(file) for file in torch.files or ())
    size = sum(file.stat().st_size for file in files if file.is_file())  # type: ignore[attr-defined]
    build = torch.version.partition("+")[2] or "the index's default"
    print(f"set-up: torch {torch.version} (build: {build}, {size / 1e6:.0f} MB on disk)")


if __name__ == "__main__":
    main()
