"""What many prompts share is found, whatever it is; what one conversation repeats is not taken for it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from hashlib import shake_128

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.policies.shared_prefixes import (
    BRANCHES,
    GRAIN,
    IDLE_S,
    KEY,
    SharedPrefixes,
    common_length,
)
from pdcore.router.want import Prefix

pytestmark = pytest.mark.unit


def text(name: str, size: int) -> str:
    """``size`` characters that are nobody else's."""
    return shake_128(name.encode()).hexdigest(size)[:size]


def chat(system: str, *turns: str) -> bytes:
    """A conversation as a client sends it: user and assistant in turn."""
    roles = ["user", "assistant"] * len(turns)
    said = [{"role": "system", "content": system}] if system else []
    said += [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return json.dumps(said).encode()


def seen(memory: SharedPrefixes, prompts: Iterable[bytes], now: float = 0.0) -> list[Prefix]:
    return [memory.see(prompt, now) for prompt in prompts]


def learned(system: str, count: int = 8) -> SharedPrefixes:
    """A memory that has seen ``count`` conversations with ``system``."""
    memory = SharedPrefixes()
    seen(memory, (chat(system, text(f"first {n}", 200)) for n in range(count)))
    return memory


def test_turns_of_one_conversation_have_one_home_and_share_nothing() -> None:
    memory = SharedPrefixes()
    turns = [text(f"turn {n}", 300) for n in range(9)]
    prompts = [chat("be brief", *turns[: 2 * n + 1]) for n in range(5)]
    found = seen(memory, prompts)
    assert len({prefix.path[-1].key for prefix in found}) == 1
    assert all(len(prefix.path) == 1 for prefix in found)
    assert found[-1].shared_bytes == 0


def test_a_system_prompt_is_found_and_each_conversation_behind_it_is_told_apart() -> None:
    system = text("system", 4000)
    memory = learned(system)
    first = [memory.see(chat(system, text(f"c{n}", 200)), 0) for n in range(20)]
    later = [
        memory.see(chat(system, text(f"c{n}", 200), text("answer", 300), text("more", 300)), 0)
        for n in range(20)
    ]
    assert [prefix.path[-1].key for prefix in first] == [prefix.path[-1].key for prefix in later]
    assert len({prefix.path[-1].key for prefix in first}) == 20
    assert len({prefix.path[0].key for prefix in first}) == 1
    assert later[-1].path[0].share == pytest.approx(1)
    assert 4000 - GRAIN <= later[-1].shared_bytes <= 4000 + 2 * GRAIN


@pytest.mark.parametrize("shape", ["chat without a system prompt", "text", "token ids"])
def test_a_document_is_found_wherever_it_stands(shape: str) -> None:
    document, questions = text("document", 6000), [text(f"question {n}", 200) for n in range(12)]
    shapes = {
        "chat without a system prompt": [chat("", document + question) for question in questions],
        "text": [json.dumps(document + question).encode() for question in questions],
        "token ids": [
            json.dumps([*document.encode(), *question.encode()]).encode() for question in questions
        ],
    }
    found = seen(SharedPrefixes(), shapes[shape])
    assert len(found[-1].path) == 2
    assert len({prefix.path[-1].key for prefix in found[BRANCHES:]}) == len(questions) - BRANCHES
    assert found[-1].shared_bytes >= 6000 - GRAIN


def test_tenants_behind_a_common_preamble_are_told_apart_and_so_are_their_questions() -> None:
    memory, preamble = SharedPrefixes(), text("preamble", 1000)
    order = [(tenant, question) for question in range(8) for tenant in range(6)]
    random.Random(1).shuffle(order)
    prompts = {
        (tenant, question): chat(
            preamble + text(f"tenant {tenant}", 3000), text(f"q {tenant} {question}", 200)
        )
        for tenant, question in order
    }
    seen(memory, (prompts[one] for one in order))
    found = {one: memory.see(prompts[one], 1) for one in order}
    assert {len(prefix.path) for prefix in found.values()} == {3}
    assert len({prefix.path[0].key for prefix in found.values()}) == 1
    by_tenant = [{found[one].path[1].key for one in order if one[0] == tenant} for tenant in range(6)]
    assert all(len(keys) == 1 for keys in by_tenant)
    assert len(set().union(*by_tenant)) == 6
    assert len({prefix.path[2].key for prefix in found.values()}) == 48
    shares = [found[one].path[1].share for one in order]
    assert max(shares) < 0.25


def test_a_fork_of_a_conversation_is_no_shared_prefix() -> None:
    memory, system = learned(text("system", 2000)), text("system", 2000)
    first, answer = text("first", 400), text("answer", 400)
    home = memory.see(chat(system, first), 0).path[-1].key
    for fork in ("again", "otherwise"):
        assert memory.see(chat(system, first, answer, text(fork, 400)), 0).path[-1].key == home


def test_routers_that_saw_different_requests_agree_on_every_conversation() -> None:
    systems = [text(f"system {n}", 1500 + 37 * n) for n in range(5)]
    everything = [(n % 5, text(f"session {n}", 250)) for n in range(400)]
    dice = random.Random(2)
    routers = [SharedPrefixes() for _ in range(4)]
    for system, session in everything:
        dice.choice(routers).see(chat(systems[system], session), 0)
    for system, session in everything:
        later = chat(systems[system], session, text("a", 100), text("b", 100))
        homes = {router.see(later, 1).path[-1].key for router in routers}
        assert len(homes) == 1


def test_a_share_decays_and_what_is_idle_is_forgotten() -> None:
    memory = learned(text("old", 2000), 64)
    assert memory.held_bytes > 0
    other = [chat(text("new", 2000), text(f"n{n}", 200)) for n in range(64)]
    even = seen(memory, other)[-1]
    assert even.path[0].share == pytest.approx(0.5, abs=0.01)
    later = memory.see(other[0], 120)
    assert later.path[0].share == pytest.approx(0.5, abs=0.05)
    alone = memory.see(other[0], 130 + IDLE_S)
    assert (len(alone.path), alone.shared_bytes) == (1, 0)
    assert memory.held_bytes <= len(other[0])


@settings(deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2000)), max_size=60),
    most_bytes=st.sampled_from([1000, 10000, 1 << 20]),
    most_nodes=st.sampled_from([1, 5, 1000]),
)
def test_memory_is_bounded_and_its_sums_hold_whatever_comes(
    prompts: Sequence[tuple[int, int, int]], most_bytes: int, most_nodes: int
) -> None:
    memory = SharedPrefixes(most_bytes=most_bytes, most_nodes=most_nodes)
    for number, (head, middle, size) in enumerate(prompts):
        prompt = (text(f"h{head}", 300) + text(f"m{middle}", 200) + text(f"t{number}", 50))[:size].encode()
        found = memory.see(prompt, float(number))
        assert bool(found.path) == bool(prompt)
        assert all(0 <= part.share <= 1.0001 for part in found.path)
        assert 0 <= found.shared_bytes
        assert 0 <= memory.held_bytes <= most_bytes
        nodes = memory._nodes.values()
        assert len(nodes) <= most_nodes
        assert memory.held_bytes == sum(len(node.stem) for node in nodes)


@settings(deadline=None)
@given(
    stem=st.binary(max_size=40), rest=st.binary(max_size=40), start=st.integers(0, 5), keep=st.integers(0, 40)
)
def test_the_common_length_is_what_counting_bytes_gives(
    stem: bytes, rest: bytes, start: int, keep: int
) -> None:
    prompt = b"x" * start + stem[:keep] + rest
    counted = 0
    while (
        counted < len(stem) and prompt[start + counted : start + counted + 1] == stem[counted : counted + 1]
    ):
        counted += 1
    assert common_length(stem, prompt, start) == counted


def test_a_prompt_shorter_than_a_key_is_a_conversation_of_its_own() -> None:
    memory = SharedPrefixes()
    short = [b'"hi"', b'"ho"', b'"h' + b"i" * KEY + b'"']
    assert len({prefix.path[0].key for prefix in seen(memory, short)}) == 3
