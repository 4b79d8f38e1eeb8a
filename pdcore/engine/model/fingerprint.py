"""One hash for everything about a model that two instances must share to continue each other's requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pdcore.engine.model.chat_template import FILE as CHAT_TEMPLATE
from pdcore.engine.model.directory import read_json, read_optional_json, refuse

_IRRELEVANT: Final = frozenset(
    {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype"}
)
"""Where a model came from, who wrote it down, and how its weights are stored; the computing dtype counts instead."""


def fingerprint(directory: Path, dtype: str) -> str:
    """32 hex digits over the config without paths, the computing ``dtype``, the tokenizer and the chat template.

    Weights are not read: two models that differ in weights alone share a fingerprint, as config and tokenizer do.
    """
    described = [
        _relevant(read_json(directory, "config.json")),
        _relevant(read_optional_json(directory, "tokenizer_config.json") or {}),
        dtype,
    ]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode())
    digest.update(_content(directory, "tokenizer.json"))
    if (directory / CHAT_TEMPLATE).is_file():
        digest.update(_content(directory, CHAT_TEMPLATE))
    return digest.hexdigest()[:32]


def _relevant(document: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in document.items() if key not in _IRRELEVANT}


def _content(directory: Path, name: str) -> bytes:
    try:
        return hashlib.sha256((directory / name).read_bytes()).digest()
    except OSError as wrong:
        raise refuse(directory, f"{name} cannot be read: {wrong.strerror}") from wrong
