"""Against transformers in float32: logits within tolerance, then greedy text token by token."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pdcore.config import demo_model_directory
from pdcore.engine.demo_model import is_complete
from pdcore.engine.model.runner import Slice
from pdcore.engine.model.text import TextCodec
from tests.engine.model.conftest import WRITERS, TinyModel
from tests.support.paged_generation import PagedModel

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TIE: Final = 1e-3
PROMPTS: Final = 20
MOST: Final = 24


@dataclass(frozen=True)
class Reference:
    """The same directory in transformers."""

    model: Any
    tokenizer: Any

    @classmethod
    def of(cls, directory: Path) -> Reference:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        return cls(model, AutoTokenizer.from_pretrained(directory))

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            found: Tensor = self.model(torch.tensor([list(token_ids)])).logits[0]
        return found

    def greedy(self, prompt: Sequence[int], most: int) -> tuple[list[int], list[float]]:
        """New tokens, and how far apart the two best logits were at each."""
        ids = torch.tensor([list(prompt)])
        made = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=most,
            return_dict_in_generate=True,
            output_logits=True,
        )
        best = [step[0].topk(2).values for step in made.logits]
        return made.sequences[0, len(prompt) :].tolist(), [float(two[0] - two[1]) for two in best]


def assert_same_text(ours: list[int], theirs: list[int], gaps: list[float]) -> None:
    """Equal, or different from a step on where the two best logits tie."""
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            assert gaps[step] < TIE, f"token {step} is {mine}, not {other}, with a gap of {gaps[step]}"
            return
    assert len(ours) == len(theirs)


def prompts(count: int, seed: int) -> list[list[int]]:
    chosen = random.Random(seed)
    return [[chosen.randrange(512) for _ in range(chosen.randrange(1, 60))] for _ in range(count)]


@pytest.mark.parametrize("name", WRITERS)
def test_logits_of_every_variant(tiny_model: TinyModel, name: str) -> None:
    """Whole prompts, chunks and single tokens in one batch, and a context beyond the original of scaled ropes."""
    directory = tiny_model(name)
    model, reference = PagedModel(directory), Reference.of(directory)
    sequences = [
        *prompts(4, seed=1),
        *prompts(1, seed=2),
        [token for part in prompts(30, 3) for token in part],
    ]
    news = (None, 1, 5, 1, 2, 7)
    batch, expected = [], []
    for sequence, new in zip(sequences, news, strict=True):
        table = model.table(len(sequence))
        kept = 0 if new is None else max(len(sequence) - new, 0)
        if kept:
            model.runner.forward([Slice(tuple(sequence[:kept]), 0, table)], model.pool)
        batch.append(Slice(tuple(sequence[kept:]), kept, table))
        expected.append(reference.logits(sequence)[-1])
    assert len(sequences[-1]) > 600
    torch.testing.assert_close(
        model.runner.forward(batch, model.pool), torch.stack(expected), atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("name", ["llama", "llama-tied-llama3", "qwen3"])
def test_twenty_prompts_generate_the_same_tokens(tiny_model: TinyModel, name: str) -> None:
    directory = tiny_model(name)
    given = prompts(PROMPTS, seed=5)
    ours = PagedModel(directory).greedy(given, MOST)
    reference = Reference.of(directory)
    for prompt, made in zip(given, ours, strict=True):
        assert_same_text(made, *reference.greedy(prompt, MOST))
    assert len({tuple(made) for made in ours}) > PROMPTS // 2


CHATS: Final[tuple[list[dict[str, str]], ...]] = (
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Und Größe? 👍\n\n  1234"},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": " Hello! "},
        {"role": "user", "content": "<|im_end|> are you 数字 or <b>bold</b>?"},
    ],
)
TOOLS: Final = [{"type": "function", "function": {"name": "now", "description": "<Zeit>", "parameters": {}}}]


def assert_text_agrees(codec: TextCodec, tokenizer: Any) -> None:
    for chat in CHATS:
        for tools in (None, TOOLS):
            theirs = tokenizer.apply_chat_template(
                chat, tools=tools, add_generation_prompt=True, return_dict=False
            )
            assert codec.encode_chat(chat, tools) == theirs
            assert codec.decode(theirs) == tokenizer.decode(theirs, skip_special_tokens=True)
        text = " ".join(message["content"] for message in chat)
        assert codec.encode(text) == tokenizer(text)["input_ids"]


def test_chat_prompts_and_text_agree(tiny_model: TinyModel) -> None:
    directory = tiny_model("qwen3")
    assert_text_agrees(TextCodec.from_directory(directory), Reference.of(directory).tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}\n    {% if loop.first %}{% continue %}{% endif %}\n{{ m.content }}{% endfor %}",
        "{{ messages | tojson(indent=2) }}{{ bos_token }}{{ eos_token }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ messages[0]['name'] is defined }}",
        "{{ dict(a=1) }}{{ messages[0].content | trim | upper }}{{ strftime_now('%Y') }}{{ documents }}",
    ],
)
def test_templates_render_alike(tiny_model: TinyModel, tmp_path: Path, template: str) -> None:
    for file in tiny_model("qwen3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    from transformers import AutoTokenizer

    assert_text_agrees(TextCodec.from_directory(tmp_path), AutoTokenizer.from_pretrained(tmp_path))


@pytest.mark.model
def test_the_demo_models_text_agrees() -> None:
    directory = demo_model_directory()
    if not is_complete(directory):
        pytest.skip(f"{directory} is not there: pdcore demo-model makes it")
    from transformers import AutoTokenizer

    assert_text_agrees(TextCodec.from_directory(directory), AutoTokenizer.from_pretrained(directory))
