"""Which requests teach the memory, and what of them."""

from __future__ import annotations

import json

import pytest

from pdcore.config.policies import PolicyNames
from pdcore.router.api import parse
from pdcore.router.policies.prompt_memory import MOST_MODELS, PromptMemory, material
from pdcore.router.policies.selection import USUAL, Selection

pytestmark = pytest.mark.unit

SAID = [{"role": "user", "content": "hi"}]


def chat(**more: object) -> bytes:
    return json.dumps({"messages": SAID, "temperature": 0, **more}).encode()


def test_the_prompt_is_what_the_model_reads_first_and_nothing_else() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert material(parse("chat", chat())) == json.dumps(SAID).encode()
    assert (
        material(parse("chat", chat(tools=tools, seed=1))) == (json.dumps(tools) + json.dumps(SAID)).encode()
    )
    assert material(parse("completions", b'{"prompt": [1, 2], "stop": "x"}')) == b"[1, 2]"
    assert material(parse("generate", b'{"text": "ho"}')) == b'"ho"'


def test_each_model_has_a_memory_of_its_own_and_there_are_not_too_many() -> None:
    memory, request = PromptMemory(USUAL), parse("chat", chat())
    for number in range(3 * MOST_MODELS):
        found = memory.see(f"model {number}", request, 0)
        assert found is not None
        assert found.path[0].share == 1
    assert len(memory._models) <= MOST_MODELS


def test_nothing_is_remembered_where_no_policy_asks_and_of_requests_that_generate_nothing() -> None:
    turns = PromptMemory(Selection(PolicyNames(usual="round_robin")))
    assert turns.see("m", parse("chat", chat()), 0) is None
    memory = PromptMemory(USUAL)
    assert memory.see("m", parse("tokenize", b'{"prompt": "hi"}'), 0) is None
    assert not turns._models
    assert not memory._models
