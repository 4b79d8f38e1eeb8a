"""Reading a Hugging Face model directory: every way it can be wrong is one sentence that names the setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pdcore.errors import ConfigError

MAX_JSON_BYTES: Final = 256 << 20


def refuse(directory: Path, sentence: str) -> ConfigError:
    """The error for a model directory that cannot be used."""
    return ConfigError(f"--model / PDCORE_MODEL: {directory}: {sentence}")


def read_json(directory: Path, name: str) -> dict[str, object]:
    """The object in ``directory/name``; ConfigError when it is missing, unreadable or no JSON object."""
    document = read_optional_json(directory, name)
    if document is None:
        raise refuse(directory, f"{name} is missing")
    return document


def read_optional_json(directory: Path, name: str) -> dict[str, object] | None:
    """As :func:`read_json`, but None when the file does not exist."""
    require_directory(directory)
    path = directory / name
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise refuse(directory, f"{name} is larger than {MAX_JSON_BYTES >> 20} MiB")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise refuse(directory, f"{name} cannot be read: {wrong.strerror}") from wrong
    except (ValueError, RecursionError) as wrong:
        raise refuse(directory, f"{name} is not valid JSON (truncated?): {wrong}") from wrong
    if not isinstance(document, dict):
        raise refuse(directory, f"{name} holds {type(document).__name__}, not an object")
    return document


def require_directory(directory: Path) -> None:
    """ConfigError unless ``directory`` is one."""
    if not directory.exists():
        raise refuse(directory, "there is no such directory")
    if not directory.is_dir():
        raise refuse(directory, "is a file, not a model directory")


class Fields:
    """Typed access to one JSON object of a model directory; a field of a wrong type is refused by name."""

    def __init__(self, directory: Path, file: str, values: Mapping[str, object]) -> None:
        self._directory = directory
        self._file = file
        self._values = values

    def given(self, name: str) -> object:
        """The raw value, None when absent."""
        return self._values.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1; required when there is no default."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(name, value, "a whole number of at least 1")
        return value

    def count(self, name: str, default: int) -> int:
        """A whole number, 0 or more."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(name, value, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number; required when there is no default."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> ConfigError:
        shown = "is missing" if value is None else f"is {value!r}"
        return refuse(self._directory, f"{self._file}: {name} {shown}, must be {wanted}")
