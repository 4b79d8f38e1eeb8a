"""Text that arrives token by token is the text of all tokens, and no character is shown half."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from pdcore.engine.model.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer, byte_vocabulary
from pdcore.engine.model.text import TextCodec
from tests.engine.model.conftest import TinyModel
from tests.support.tiny_models import VOCAB_SIZE

pytestmark = pytest.mark.unit

TEXTS = (
    "Hello, world",
    "  two leading spaces",
    "naïve café",
    "日本語のテキスト",
    "family 👩‍👩‍👧‍👦 and flag 🇫🇷!",
    "a\nb\t c",
)


@pytest.fixture(scope="module")
def codec(tiny_model: TinyModel) -> TextCodec:
    return TextCodec.from_directory(tiny_model("llama"))


def one_by_one(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push([token]) for token in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_and_hold_whole_characters_only(codec: TextCodec, text: str) -> None:
    pieces = one_by_one(codec.detokenizer(), codec.encode(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_emoji_appears_with_its_last_byte(codec: TextCodec) -> None:
    token_ids = codec.encode("😀")
    assert len(token_ids) == 4
    assert one_by_one(codec.detokenizer(), token_ids) == ["", "", "", "😀", ""]


def test_an_unfinished_character_is_one_replacement_in_the_end(codec: TextCodec) -> None:
    assert one_by_one(codec.detokenizer(), codec.encode("😀")[:3]) == ["", "", "", "\ufffd"]


@given(
    token_ids=st.lists(st.integers(0, VOCAB_SIZE + 5), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_any_tokens_in_any_pieces_are_what_the_tokenizer_decodes(
    codec: TextCodec, token_ids: list[int], cuts: list[int]
) -> None:
    detokenizer, edges = codec.detokenizer(), [0, *sorted(cuts), len(token_ids)]
    text = "".join(detokenizer.push(token_ids[a:b]) for a, b in pairwise(edges) if a < b)
    assert text + detokenizer.flush() == codec.decode(token_ids)


def test_special_tokens_have_no_text_and_added_ones_have_theirs() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "\u0120": 1}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.add_tokens(["<未使用>"])
    vocabulary = byte_vocabulary(tokenizer)
    assert vocabulary == {0: b"a", 1: b" ", 3: "<未使用>".encode()}
    assert ByteDetokenizer(vocabulary).push([0, 2, 1, 3]) == "a <未使用>"
    assert tokenizer.decode([0, 2, 1, 3]) == "a <未使用>"


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    """A vocabulary as SentencePiece makes them: a mark for spaces, and bytes as tokens of their own."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz,!"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


@settings(deadline=None)
@given(text=st.text("ab 日é😀", max_size=15))
def test_a_window_gives_the_text_of_other_vocabularies(sentencepiece: Tokenizer, text: str) -> None:
    token_ids = sentencepiece.encode(text).ids
    pieces = one_by_one(WindowDetokenizer(sentencepiece), token_ids)
    assert "".join(pieces) == sentencepiece.decode(token_ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_leading_space_is_text_after_a_prompt(sentencepiece: Tokenizer) -> None:
    prompt, answer = sentencepiece.encode("hello").ids, sentencepiece.encode("world").ids
    assert "".join(one_by_one(WindowDetokenizer(sentencepiece), answer)) == "world"
    assert "".join(one_by_one(WindowDetokenizer(sentencepiece, prompt), answer)) == " world"


def test_bytes_that_never_become_a_character_do_not_wait_for_ever(sentencepiece: Tokenizer) -> None:
    stray = 2 + 0x80
    assert sentencepiece.id_to_token(stray) == "<0x80>"
    pieces = one_by_one(WindowDetokenizer(sentencepiece), [stray] * 20)
    assert sum(len(piece) for piece in pieces[:8]) >= 4
    assert "".join(pieces) == "\ufffd" * 20


def test_a_long_run_of_special_tokens_is_forgotten(sentencepiece: Tokenizer) -> None:
    detokenizer = WindowDetokenizer(sentencepiece)
    assert detokenizer.push([1] * 1000) == ""
    assert len(detokenizer._window) < 10
    assert detokenizer.push(sentencepiece.encode("ab").ids) == "ab"
