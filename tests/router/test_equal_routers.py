"""Two routers over one keyspace, on real sockets: they agree without a word, and each policy does what its name says."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from pdcore.config.policies import policy_names
from pdcore.registry.memory import MemoryStore
from pdcore.topology.records import InstanceRecord
from tests.router.fleet import MODEL, Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.fake_engines import COMPLETION, MARK, FakeEngine, Script

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)


@asynccontextmanager
async def routers(count: int, prefills: int, decodes: int, **changes: Any) -> AsyncIterator[list[Fleet]]:
    """``count`` routers that see the same engines."""
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(running_fleet(store=store, **changes)) for _ in range(count)]
        for role, number, script in (("prefill", prefills, fake.accepted()), ("decode", decodes, GOOD)):
            for place in range(number):
                engine = await stack.enter_async_context(FakeEngine([script]))
                made = await found[0].add(f"{role}-{place}", role, engine)  # type: ignore[arg-type]
                for other in found[1:]:
                    await other.sees(f"{role}-{place}", made.incarnation)
        yield found


async def pair(router: Fleet, prompt: str, **more: object) -> tuple[str, str]:
    answer = await router.post({"model": MODEL, "prompt": prompt, **more})
    assert answer.status_code == 200, answer.text
    prefill, decode = answer.headers["x-pdcore-pair"].split(",")
    return prefill, decode


async def test_the_same_prompt_goes_to_the_same_prefill_through_any_router() -> None:
    async with routers(2, prefills=4, decodes=2) as (one, other):
        prompts = [f"{number} begins like no other" for number in range(16)]
        homes = [(await pair(one, prompt))[0] for prompt in prompts]
        assert [(await pair(other, prompt))[0] for prompt in reversed(prompts)] == homes[::-1]
        assert len(set(homes)) > 1


async def test_turns_use_every_pair() -> None:
    async with routers(1, prefills=2, decodes=2, policy=policy_names("round_robin")) as (router,):
        pairs = Counter([await pair(router, "hi") for _ in range(12)])
        assert sorted(pairs.values()) == [3, 3, 3, 3]


async def test_a_room_has_one_place_while_the_fleet_stays_the_same() -> None:
    async with routers(2, prefills=4, decodes=4, policy=policy_names("room_hash")) as (one, other):
        first = [await pair(one, "hi", bootstrap_room=room) for room in range(1, 13)]
        assert [await pair(other, "ho", bootstrap_room=room) for room in range(1, 13)] == first
        assert len(set(first)) > 3


async def test_whoever_comes_with_a_seat_gets_its_conversations_through_any_router() -> None:
    async with routers(2, prefills=0, decodes=1) as (one, other), AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeEngine([fake.accepted()])) for _ in range(5)]
        prompts = [f"{number} begins like no other" for number in range(12)]
        made = [await _seated(one, other, f"prefill-{seat}", seat, engines[seat]) for seat in range(4)]
        before = [(await pair(one, prompt))[0] for prompt in prompts]
        await one.remove("prefill-2", made[2])
        await other.follower.wait_until(lambda view: "prefill-2" not in view.instances, 5)
        await _seated(one, other, "another", 2, engines[4])
        after = ["another" if home == "prefill-2" else home for home in before]
        assert [(await pair(other, prompt))[0] for prompt in prompts] == after
        assert [(await pair(one, prompt))[0] for prompt in reversed(prompts)] == after[::-1]
        assert "another" in after
        shown = (await other.client.get("/pdcore/topology")).json()["instances"]
        assert shown["another"]["seat"] == 2
        assert shown["decode-0"]["seat"] is None


async def _seated(one: Fleet, other: Fleet, name: str, seat: int, engine: FakeEngine) -> InstanceRecord:
    """Register a prefill that both routers see."""
    made = await one.add(name, "prefill", engine, extra={"seat": seat})
    await other.sees(name, made.incarnation)
    return made


@pytest.mark.cluster
@pytest.mark.parametrize(("policy", "count"), [("round_robin", 1000), (None, 2000)])
async def test_everybody_gets_a_share_within_a_tenth_and_no_pair_is_left_out(
    policy: str | None, count: int
) -> None:
    chosen = {} if policy is None else {"policy": policy_names(policy)}
    async with routers(2, prefills=4, decodes=2, **chosen) as both:
        pairs = Counter([await pair(both[n % 2], f"{n} is what nobody else asks") for n in range(count)])
    assert len(pairs) == 8
    for place, of in ((0, 4), (1, 2)):
        shares = Counter[str]()
        for names, served in pairs.items():
            shares[names[place]] += served
        assert all(abs(share - count / of) <= 0.1 * count / of for share in shares.values()), shares


@pytest.mark.cluster
async def test_when_an_instance_is_replaced_at_another_address_only_its_own_conversations_move() -> None:
    async with routers(2, prefills=8, decodes=1) as both, FakeEngine([fake.accepted()]) as fresh:
        prompts = [f"{number} begins like no other" for number in range(400)]
        before = [(await pair(both[n % 2], prompt))[0] for n, prompt in enumerate(prompts)]
        gone = both[0].follower.topology.instances["prefill-3"].record
        await both[0].remove("prefill-3", gone)
        await both[1].follower.wait_until(lambda view: "prefill-3" not in view.instances, 5)
        meanwhile = [(await pair(both[n % 2], prompt))[0] for n, prompt in enumerate(prompts)]
        made = await both[0].add("prefill-3", "prefill", fresh, incarnation="i2")
        await both[1].sees("prefill-3", made.incarnation)
        after = [(await pair(both[n % 2], prompt))[0] for n, prompt in enumerate(prompts)]
    assert after == before
    moved = [home for home, then in zip(before, meanwhile, strict=True) if home != then]
    assert set(moved) == {"prefill-3"}
    assert len(moved) <= 0.15 * len(prompts)
    assert len(fresh.seen) == len(moved)
