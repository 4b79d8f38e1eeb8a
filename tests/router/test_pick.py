"""Which pair serves a request, and every reason why one does not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
from msgspec import structs

from pdcore.config.policies import PolicyNames
from pdcore.router.api import parse
from pdcore.router.eligible import Filter
from pdcore.router.load import Ledger
from pdcore.router.pick import NO_DOUBTS, CompatMemo, NoPair, Pick, Rules, Want, pick
from pdcore.router.policies.prompt_memory import PromptMemory
from pdcore.router.policies.selection import USUAL, Selection
from pdcore.topology import codec, keys
from pdcore.topology.compat import check_pair
from pdcore.topology.instance import Instance
from pdcore.topology.records import DesiredRecord, InstanceRecord, OrderRecord, Record
from pdcore.topology.topology import Stored, Topology, build
from tests.router.fleet import COMPAT, MODEL, entries, record

pytestmark = pytest.mark.unit

WANT = Want(model=MODEL)


def rules(policies: Selection | str = "least_loaded") -> Rules:
    if isinstance(policies, str):
        policies = Selection(PolicyNames(usual=policies))
    return Rules(
        check=CompatMemo(lambda p, d: check_pair(p.record, d.record)),
        protocols=frozenset({"bootstrap", "unified"}),
        policies=policies,
    )


def prefill(**changes: Any) -> InstanceRecord:
    return record("prefill", "http://127.0.0.1:1", **changes)


def decode(**changes: Any) -> InstanceRecord:
    return record("decode", "http://127.0.0.1:2", **changes)


def fleet(instances: dict[str, InstanceRecord], more: dict[str, Record] | None = None) -> Topology:
    records: dict[str, Record] = dict(more or {})
    for instance_id, made in instances.items():
        records |= entries(instance_id, made)
    return build({key: Stored(codec.encode(one), 5) for key, one in records.items()}, 7)


def picked(topology: Topology, want: Want = WANT, ledger: Ledger | None = None) -> Pick:
    found = pick(topology, want, ledger or Ledger(), rules())
    assert isinstance(found, Pick), found
    return found


def against(topology: Topology, want: Want = WANT) -> NoPair:
    found = pick(topology, want, Ledger(), rules())
    assert isinstance(found, NoPair), found
    return found


def test_a_pair_is_picked_with_its_only_dp_rank_and_the_views_revision() -> None:
    found = picked(fleet({"p": prefill(), "d": decode()}))
    assert (found.name, found.prefill_dp_rank, found.revision) == ("p,d", 0, 7)


def test_a_large_fleet_costs_a_check_per_pair_of_kinds_and_not_per_pair() -> None:
    far = replace(COMPAT, transfer_engines=("tcp",))
    many = {f"p{number}": prefill(compat=far, boot_id=f"b{number}") for number in range(60)}
    many |= {f"d{number}": decode(compat=far, boot_id=f"c{number}") for number in range(60)}
    topology = fleet({**many, "odd": decode(compat=replace(far, kv_dtype="float16"))})
    asked: list[tuple[str, str]] = []

    def asking(one: Instance, other: Instance) -> tuple[str, ...]:
        asked.append((one.instance_id, other.instance_id))
        return check_pair(one.record, other.record)

    answer = Filter(asking, {"bootstrap"})(topology, WANT, NO_DOUBTS)
    assert [prefill.instance_id for prefill, _ in answer.sure.pairs] == sorted(
        f"p{number}" for number in range(60)
    )
    assert all(len(decodes) == 60 for _, decodes in answer.sure.pairs)
    assert len(asked) == 2


def test_instances_that_fit_nobody_are_told_together() -> None:
    alike = {f"d{number}": decode(compat=replace(COMPAT, kv_dtype="float16")) for number in range(3)}
    found = against(fleet({"p": prefill(), **alike}))
    (why,) = found.reasons["p"]
    assert why.startswith("does not pair with d0 and 2 like it: kv_dtype: ")


@pytest.mark.parametrize(
    ("who", "made", "reason"),
    [
        ("p", prefill(models=("other",)), "does not serve tiny"),
        ("p", prefill(state="draining"), "is draining"),
        ("p", prefill(state="starting"), "state is starting"),
        ("p", prefill(group="g"), "is of generation 0, active is None"),
        ("p", prefill(protocol="carrier-pigeon"), "carrier-pigeon"),
        ("d", decode(models=("other",)), "does not serve tiny"),
        ("d", decode(state="draining"), "is draining"),
    ],
)
def test_each_exclusion_has_its_reason(who: str, made: InstanceRecord, reason: str) -> None:
    found = against(fleet({"p": prefill(), "d": decode(), who: made}))
    assert reason in "; ".join(found.reasons[who])
    assert reason in found.sentence()


def test_a_missing_rank_and_an_order_exclude() -> None:
    alone = fleet({}, {keys.instance("p"): prefill(), **entries("d", decode())})
    assert "rank 0.0.0 is missing" in against(alone).reasons["p"]
    drain = OrderRecord(kind="drain", incarnation="i1", sticky=False, by="me")
    ordered = fleet({"p": prefill(), "d": decode()}, {keys.order("d"): drain})
    assert "is draining" in against(ordered).reasons["d"]


def test_an_incompatible_pair_is_told_with_both_values() -> None:
    other = record(
        "decode",
        "http://127.0.0.1:2",
        compat=codec.compat_from({**codec.compat_document(COMPAT), "kv_dtype": "bfloat16"}),
    )
    sentence = against(fleet({"p": prefill(), "d": other})).sentence()
    assert "float32" in sentence
    assert "bfloat16" in sentence


def test_a_decode_that_pairs_with_nobody_is_named_although_others_serve() -> None:
    other = record("decode", "http://127.0.0.1:2", compat=replace(COMPAT, context_length=77))
    found = picked(fleet({"p": prefill(), "d": decode(), "odd": other}))
    assert found.name == "p,d"
    (why,) = found.excluded["odd"]
    assert why == f"does not pair with p: context_length: prefill has {COMPAT.context_length}, decode 77"


def test_the_active_generation_serves_and_no_other_pairs_with_it() -> None:
    desired = DesiredRecord(active=2, candidate=None, deadline=None, replicas={})
    generations = {
        f"{role[0]}{g}": record(role, "http://127.0.0.1:1", group="g", generation=g)  # type: ignore[arg-type]
        for role, g in product(("prefill", "decode"), (1, 2))
    }
    topology = fleet(generations, {keys.desired("g"): desired})
    assert picked(topology).name == "p2,d2"
    refused = Want(model=MODEL, excluded={("p2", "i1"): "refused"})
    assert against(topology, refused).reasons["p1"] == ("is of generation 1, active is 2",)


def test_who_refused_is_left_out_until_it_is_another_incarnation() -> None:
    instances = {"p": prefill(), "p2": prefill(), "d": decode()}
    want = Want(model=MODEL, excluded={("p", "i1"): "refused the connection"})
    assert picked(fleet(instances), want).name == "p2,d"
    alone = against(fleet({"p": prefill(), "d": decode()}), want)
    assert alone.reasons["p"] == ("refused the connection",)
    assert picked(fleet({"p": prefill(incarnation="i2"), "d": decode()}), want).name == "p,d"


def test_an_engine_that_chooses_its_dp_rank_is_not_told_one_unless_the_client_did() -> None:
    chooses = fleet({"p": prefill(extra={"dp_rank_choice": "engine"}), "d": decode()})
    assert picked(chooses).prefill_dp_rank is None
    assert picked(chooses, Want(model=MODEL, prefill_dp_rank=0)).prefill_dp_rank == 0


def test_a_pin_and_a_dp_rank_restrict_the_prefill() -> None:
    instances = {"p": prefill(), "wide": prefill(dp_size=2), "d": decode()}
    topology = fleet(instances)
    for _ in range(4):
        assert picked(topology, Want(model=MODEL, pinned_prefill="wide")).name == "wide,d"
    ranked = picked(topology, Want(model=MODEL, prefill_dp_rank=1))
    assert (ranked.name, ranked.prefill_dp_rank) == ("wide,d", 1)
    assert picked(topology, Want(model=MODEL, pinned_prefill="wide")).prefill_dp_rank is None
    assert "has no dp rank 5" in against(topology, Want(model=MODEL, prefill_dp_rank=5)).reasons["p"]


def test_unified_serves_only_when_no_pair_is_eligible_or_it_is_preferred() -> None:
    unified = record("unified", "http://127.0.0.1:3")
    instances = {"u": unified, "p": prefill(), "d": decode()}
    assert picked(fleet(instances)).name == "p,d"
    assert picked(fleet(instances), Want(model=MODEL, prefers_unified=True)).name == "u"
    assert (
        picked(fleet({"p": prefill(), "d": decode()}), Want(model=MODEL, prefers_unified=True)).name == "p,d"
    )
    alone = picked(fleet({"u": unified, "p": prefill()}))
    assert (alone.name, alone.prefill, alone.prefill_dp_rank) == ("u", None, None)
    assert against(fleet({"u": unified}), Want(model=MODEL, pinned_prefill="p")).reasons["*"]


def test_an_empty_fleet_says_which_roles_are_missing() -> None:
    assert against(Topology.empty()).reasons == {
        "*": ("no prefill instance is ready", "no decode instance is ready")
    }


@pytest.mark.parametrize(
    ("prefills", "decodes", "policy"),
    [
        *((*sizes, "round_robin") for sizes in product((1, 2, 3, 4), (1, 2, 3, 4))),
        *((*sizes, "least_loaded") for sizes in ((1, 1), (2, 2), (2, 3), (4, 4))),
    ],
)
def test_one_at_a_time_every_member_gets_its_share_and_every_pair_occurs(
    prefills: int, decodes: int, policy: str
) -> None:
    used, ledger, pairs = rules(policy), Ledger(), Counter[tuple[str, str]]()
    topology = square(prefills, decodes)
    for _ in range(1000):
        found = pick(topology, WANT, ledger, used)
        assert isinstance(found, Pick)
        pairs[served(found, ledger)] += 1
    assert_even(pairs, prefills, decodes)


def chat(question: str, system: str = "be brief") -> bytes:
    """The body of a request."""
    said = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return json.dumps({"model": MODEL, "messages": said}).encode()


def asking(memory: PromptMemory, body: bytes, draw: int) -> Want:
    return Want(model=MODEL, prefix=memory.see(MODEL, parse("chat", body), 0.0), draw=draw)


def square(prefills: int, decodes: int) -> Topology:
    return fleet({f"p{n}": prefill() for n in range(prefills)} | {f"d{n}": decode() for n in range(decodes)})


def served(found: Pick, ledger: Ledger) -> tuple[str, str]:
    """The pair's names, once it has served its request."""
    assert found.prefill is not None
    for hold in ledger.take(found).values():
        hold.release()
    return found.prefill.instance_id, found.decode.instance_id


def assert_even(pairs: Counter[tuple[str, str]], prefills: int, decodes: int) -> None:
    assert len(pairs) == prefills * decodes
    rounds = sum(pairs.values())
    for count, names in ((prefills, 0), (decodes, 1)):
        shares = Counter[str]()
        for pair, times in pairs.items():
            shares[pair[names]] += times
        assert all(abs(share - rounds / count) <= 0.1 * rounds / count for share in shares.values()), shares


def test_a_pick_says_why_it_is_this_pair() -> None:
    ledger = Ledger()
    topology = fleet({"p0": prefill(), "p1": prefill(), "old": prefill(state="draining"), "d": decode()})
    ledger.take(picked(topology, ledger=ledger))
    found = json.loads(json.dumps(picked(topology, ledger=ledger).explained()))
    assert (found["pair"], found["revision"], found["prefill_dp_rank"]) == ("p1,d", 7, 0)
    assert found["excluded"] == {"old": ["is draining", "state is draining"]}
    first, second = found["choices"]
    assert (first["policy"], first["chosen"]) == ("least_loaded", "p1")
    assert [first["candidates"][name]["legs in flight"] for name in ("p0", "p1")] == [1, 0]
    assert (second["role"], second["candidates"]) == ("decode", {"d": {}})


def test_no_pair_says_why_too() -> None:
    found = against(fleet({"p": prefill(), "d": decode(state="draining")})).explained()
    assert found == {
        "pair": None,
        "revision": 7,
        "missing": ["no decode instance is ready"],
        "excluded": {"d": ["is draining", "state is draining"]},
    }


def test_a_conversation_goes_to_the_dp_rank_that_has_it_unless_the_client_or_the_engine_chooses() -> None:
    memory, used = PromptMemory(USUAL), rules(USUAL)

    def rank(topology: Topology, number: int, **changes: Any) -> int | None:
        want = structs.replace(asking(memory, chat(f"{number}"), 1), **changes)
        found = pick(topology, want, Ledger(), used)
        assert isinstance(found, Pick)
        return found.prefill_dp_rank

    wide = fleet({"p": prefill(dp_size=4), "d": decode()})
    ranks = [rank(wide, number) for number in range(50)]
    assert set(ranks) == {0, 1, 2, 3}
    assert ranks == [rank(wide, number) for number in range(50)]
    assert rank(wide, 0, prefill_dp_rank=2) == 2
    chooses = fleet({"p": prefill(dp_size=4, extra={"dp_rank_choice": "engine"}), "d": decode()})
    assert rank(chooses, 0) is None


def test_each_model_has_its_own_policy() -> None:
    used = rules(Selection(PolicyNames(usual="round_robin", by_model={"other": "least_loaded"})))
    models = (MODEL, "other")
    both = fleet({"p": prefill(models=models), "d": decode(models=models)})
    found = [pick(both, Want(model=model), Ledger(), used) for model in models]
    names = [[choice.policy.name for choice in one.choices] for one in found if isinstance(one, Pick)]
    assert names == [["round_robin"] * 2, ["least_loaded"] * 2]


def test_the_fewest_open_legs_win_and_a_new_member_gets_no_flood() -> None:
    ledger = Ledger()
    topology = fleet({"p0": prefill(), "p1": prefill(), "d": decode()})
    busy = picked(topology, ledger=ledger)
    ledger.take(busy)
    for _ in range(3):
        other = picked(topology, ledger=ledger)
        assert other.prefill != busy.prefill
        for hold in ledger.take(other).values():
            hold.release()
    grown = fleet({"p0": prefill(), "p1": prefill(), "p2": prefill(), "d": decode()})
    firsts = Counter[str]()
    for _ in range(6):
        found = picked(grown, ledger=ledger)
        firsts[found.name] += 1
        for hold in ledger.take(found).values():
            hold.release()
    assert max(firsts.values()) <= 3


def test_holds_are_released_once_and_no_count_is_kept_for_nobody() -> None:
    ledger = Ledger()
    holds = ledger.take(picked(fleet({"p": prefill(), "d": decode()})))
    assert (ledger.in_flight("p"), ledger.in_flight("d"), ledger.total) == (1, 1, 2)
    with holds["p"]:
        holds["p"].release()
    assert (ledger.in_flight("p"), ledger.in_flight("d")) == (0, 1)
    holds["d"].release()
    holds["d"].release()
    assert ledger.total == 0


def test_turns_of_instances_that_are_gone_are_forgotten() -> None:
    ledger = Ledger()
    ledger.take(picked(fleet({"p": prefill(), "d": decode()})))
    ledger.forget({"d"})
    assert ledger.last_use("p") == ledger.last_use("p", "d") == 0
    assert ledger.last_use("d") == 1


@dataclass(frozen=True)
class Doubted:
    suspects: frozenset[str] = frozenset()
    gone: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)


def doubted(topology: Topology, *suspects: str, want: Want = WANT, **gone: str) -> Pick | NoPair:
    return pick(topology, want, Ledger(), rules(), Doubted(frozenset(suspects), gone))


def test_suspects_come_last_and_as_few_of_them_as_can_be() -> None:
    four = fleet({"p0": prefill(), "p1": prefill(), "d0": decode(), "d1": decode()})
    for suspects, expected in (
        (("p0", "d0"), "p1,d1"),
        (("p0", "p1", "d0"), "p0,d1"),
        (("d0", "d1"), "p0,d0"),
        (("p0", "p1", "d0", "d1"), "p0,d0"),
    ):
        found = doubted(four, *suspects)
        assert isinstance(found, Pick)
        assert found.name == expected
    busy = Want(model=MODEL, excluded={("d1", "i1"): "full"})
    found = doubted(four, "d0", want=busy)
    assert isinstance(found, Pick)
    assert found.name == "p0,d0"


def test_a_confirmed_unified_instance_comes_before_a_pair_with_a_suspect() -> None:
    one = record("unified", "http://127.0.0.1:3")
    found = doubted(fleet({"p": prefill(), "d": decode(), "u": one}), "d")
    assert isinstance(found, Pick)
    assert found.name == "u"
    last = doubted(fleet({"p": prefill(), "d": decode(), "u": one}), "d", "u")
    assert isinstance(last, Pick)
    assert last.name == "p,d"


def test_who_is_gone_is_not_picked_and_the_reason_is_told() -> None:
    found = doubted(fleet({"p": prefill(), "d": decode()}), d="it refuses connections")
    assert isinstance(found, NoPair)
    assert found.reasons["d"] == ("it refuses connections",)
