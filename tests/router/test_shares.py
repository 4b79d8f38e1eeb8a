"""Equal routers agree, and every member and pair gets its share: one view, the product's memory, pick and ledger."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

import pytest

from pdcore.config.policies import PolicyNames
from pdcore.router.api import parse
from pdcore.router.load import Ledger
from pdcore.router.pick import CompatMemo, Pick, Rules, pick
from pdcore.router.policies.prompt_memory import PromptMemory
from pdcore.router.policies.selection import USUAL, Selection
from pdcore.router.want import Want
from pdcore.topology import codec
from pdcore.topology.compat import check_pair
from pdcore.topology.records import Record
from pdcore.topology.topology import Stored, Topology, build
from tests.router.fleet import MODEL, entries, record

pytestmark = pytest.mark.unit

TURNS = Selection(PolicyNames(usual="round_robin"))


def fleet(prefills: int, decodes: int, **changes: int) -> Topology:
    """That many of each."""
    records: dict[str, Record] = {}
    for number in range(prefills):
        records |= entries(f"prefill-{number}", record("prefill", "http://127.0.0.1:1", **changes))
    for number in range(decodes):
        records |= entries(f"decode-{number}", record("decode", "http://127.0.0.1:2"))
    return build({key: Stored(codec.encode(one), 5) for key, one in records.items()}, 7)


class Router:
    """One that has one request in flight at a time."""

    def __init__(self, view: Topology, policies: Selection = USUAL) -> None:
        self._view = view
        self._memory = PromptMemory(policies)
        self._ledger = Ledger()
        self._rules = Rules(
            check=CompatMemo(lambda p, d: check_pair(p.record, d.record)),
            protocols=frozenset({"bootstrap"}),
            policies=policies,
        )

    def serve(self, prompt: str, system: str = "") -> tuple[str, str]:
        """The pair that served it."""
        said = [{"role": "system", "content": system}] if system else []
        body = json.dumps({"messages": [*said, {"role": "user", "content": prompt}]}).encode()
        prefix = self._memory.see(MODEL, parse("chat", body), 0.0)
        found = pick(self._view, Want(model=MODEL, prefix=prefix), self._ledger, self._rules)
        assert isinstance(found, Pick), found
        assert found.prefill is not None
        for hold in self._ledger.take(found).values():
            hold.release()
        return found.prefill.instance_id, found.decode.instance_id


def words(name: str, count: int) -> str:
    """``count`` words that follow from ``name``."""
    dice = random.Random(name)
    return " ".join(f"{dice.getrandbits(24):06x}" for _ in range(count))


@pytest.mark.parametrize(("kv_tokens", "used"), [(1_000_000, 8), (1_000, 5)], ids=["it fits", "it does not"])
def test_routers_with_other_pasts_pick_the_same_prefill_for_the_same_prompt(
    kv_tokens: int, used: int
) -> None:
    """``used`` are the least instances that they go to, when what they share fits every cache and when it does not."""
    view, dice = fleet(8, 3, kv_tokens=kv_tokens), random.Random(1)
    routers, systems = [Router(view) for _ in range(4)], [words(f"system {n}", 200) for n in range(16)]
    for number in range(1200):
        dice.choice(routers).serve(words(f"past {number}", 30), systems[number % 16])
    asked = [(words(f"now {number}", 30), systems[number % 16]) for number in range(400)]
    homes = [[router.serve(*one)[0] for router in routers] for one in asked]
    assert all(len(set(places)) == 1 for places in homes)
    assert len({places[0] for places in homes}) >= used


def test_turns_give_everybody_the_same_and_leave_out_no_pair() -> None:
    router = Router(fleet(8, 4), TURNS)
    _are_even(Counter(router.serve("hi") for _ in range(1000)), 8, 4)


@pytest.mark.parametrize("system", ["", words("system", 200)], ids=["alone", "behind a system prompt"])
def test_the_defaults_give_everybody_a_share_of_many_prompts_and_leave_out_no_pair(system: str) -> None:
    router = Router(fleet(8, 4))
    prompts = (f"{number} is what nobody else asks" for number in range(10_000))
    _are_even(Counter(router.serve(prompt, system) for prompt in prompts), 8, 4)


def _are_even(pairs: Mapping[tuple[str, str], int], prefills: int, decodes: int) -> None:
    """Each member within a tenth of its share; each pair at least once."""
    members = [
        *((f"prefill-{number}", 0, prefills) for number in range(prefills)),
        *((f"decode-{number}", 1, decodes) for number in range(decodes)),
    ]
    total = sum(pairs.values())
    for name, place, of in members:
        got = sum(count for pair, count in pairs.items() if pair[place] == name)
        assert abs(got - total / of) <= 0.1 * total / of, (name, got, total / of)
    assert set(pairs) == set(_all_pairs(prefills, decodes))


def _all_pairs(prefills: int, decodes: int) -> Iterable[tuple[str, str]]:
    return product(
        (f"prefill-{number}" for number in range(prefills)),
        (f"decode-{number}" for number in range(decodes)),
    )
