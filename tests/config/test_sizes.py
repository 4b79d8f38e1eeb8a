"""Sizes are read as people write them, and never guessed."""

from __future__ import annotations

import pytest

from pdcore.config.sizes import memory, tokens

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("131072", 131072),
        ("128k", 128000),
        ("128K", 131072),
        ("25.6k", 25600),
        ("1m", 1_000_000),
        ("1M", 1 << 20),
        (" 8 k ", 8000),
    ],
)
def test_a_number_of_tokens(text: str, size: int) -> None:
    assert tokens(text) == size


@pytest.mark.parametrize(
    "text", ["", "k", "auto", "-1", "0", "0k", "1.5", "1.0001k", "128 kb", "1e3", "9" * 40]
)
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        tokens(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("2Gi", 2 << 30),
        ("2G", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5Ki", 1536),
        ("1T", 10**12),
    ],
)
def test_an_amount_of_memory(text: str, size: int) -> None:
    assert memory(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "-2Gi", "0", "2X", "1.5"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory|whole"):
        memory(text)
