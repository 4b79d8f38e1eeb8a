"""Every protocol serves what it should, and refuses what it cannot, before any engine is asked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.conformance.rig import PAIRED, PROTOCOLS, error_of, rig

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_answers_and_streams_come_as_decode_gave_them(protocol: str) -> None:
    async with rig(protocol) as one:
        for stream in (False, True, True, False):
            await one.is_served(stream=stream)
            await one.invariants()
        assert sorted(one.asked) == sorted(name for name in one.engines for _ in range(4))
        await one.fleet.settled()


@pytest.mark.parametrize("protocol", PAIRED)
async def test_engines_know_a_request_by_a_name_that_no_client_can_choose(protocol: str) -> None:
    async with rig(protocol) as one:
        for _ in range(2):
            answer = await one.fleet.post({"prompt": "hi"}, headers={"x-request-id": "same"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, "same")
        legs = [seen for engine in one.engines.values() for seen in engine.seen]
        names = {seen.json.get("bootstrap_room") or seen.headers["x-request-id"] for seen in legs}
        assert len(legs) == 4
        assert len(names) == 2


async def test_a_room_for_each_prompt_and_sample_is_the_same_on_both_legs() -> None:
    async with rig("bootstrap") as one:
        answer = await one.ask(prompt=["a", "b"], n=3)
        assert answer.status_code == 200, answer.text
        (asked,), (told,) = one["p0"].seen, one["d0"].seen
        assert asked.body == told.body
        assert len(set(asked.json["bootstrap_room"])) == 6
        assert (len(asked.json["bootstrap_host"]), len(asked.json["bootstrap_port"])) == (6, 6)
        await one.invariants()


@pytest.mark.parametrize("protocol", [name for name in PAIRED if name != "bootstrap"])
async def test_what_a_protocol_cannot_hand_over_is_400_and_reaches_no_engine(protocol: str) -> None:
    async with rig(protocol) as one:
        for param, fields in (
            ("n", {"n": 2}),
            ("prompt", {"prompt": ["a", "b"]}),
            ("prompt_logprobs", {"prompt_logprobs": 1}),
        ):
            answer = await one.ask(**fields)
            assert (answer.status_code, error_of(answer)["param"]) == (400, param)
        assert one.asked == []
        await one.invariants()
        await one.is_served()


@pytest.mark.parametrize("protocol", ["nixl", "mooncake", "ascend-layerwise"])
async def test_strict_engines_find_nothing_wrong_in_either_leg(protocol: str) -> None:
    options: tuple[dict[str, Any], ...] = (
        {"stream_options": {"include_usage": True}, "stream": True, "min_tokens": 7, "max_tokens": 9},
        {"max_completion_tokens": 50, "min_tokens": 5, "n": 1, "stop": ["x"], "logprobs": 3},
        {"echo": True, "seed": 1, "ignore_eos": False, "stop_token_ids": [5], "unknown": {"a": [1.5]}},
    )
    async with rig(protocol) as one:
        for fields in options:
            answer = await one.ask(**fields)
            assert answer.status_code == 200, answer.text
            told = one["d0"].seen[-1].json
            assert {name: told[name] for name in fields} == fields
        assert [engine.refused for engine in one.engines.values()] == [[], []]
