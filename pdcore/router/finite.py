"""JSON that is none: the names that Python's encoder writes for numbers that are not finite become ``null``. Pure.

Engines report the logprob of an impossible token as ``-Infinity``; a client's parser may refuse the whole answer for it.
"""

from __future__ import annotations

import re
from typing import Final

_STRING_OR_NAME: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN', re.DOTALL)


def with_nulls(document: bytes) -> bytes:
    """``document`` with every NaN, Infinity and -Infinity outside of strings as null; else byte for byte the same."""
    if b"NaN" not in document and b"Infinity" not in document:
        return document
    return _STRING_OR_NAME.sub(_null_unless_string, document)


def _null_unless_string(found: re.Match[bytes]) -> bytes:
    text = found.group()
    return text if text.startswith(b'"') else b"null"
