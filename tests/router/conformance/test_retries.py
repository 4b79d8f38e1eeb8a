"""Another pair takes over what was not executed, under names of its own; a hand-off that waits is taken over as it is."""

from __future__ import annotations

import pytest

from tests.router.conformance.faults import Leg, saying
from tests.router.conformance.rig import PAIRED, Rig, rig

pytestmark = pytest.mark.integration


def names(one: Rig, leg: Leg) -> list[object]:
    """What the engines of ``leg`` knew the requests by."""
    seen = [seen for name in (f"{leg[0]}0", f"{leg[0]}1") for seen in one[name].seen]
    return [one_.json.get("bootstrap_room") or one_.headers["x-request-id"] for one_ in seen]


async def served_although_one_is_busy(one: Rig, leg: Leg) -> None:
    """Whichever engine of ``leg`` is asked first answers 503."""
    faults = [saying(503)]
    both = [one[f"{leg[0]}0"], one[f"{leg[0]}1"]]
    for engine in both:
        engine.faults = faults
    answer = await one.ask()
    assert answer.status_code == 200, answer.text
    assert [len(engine.seen) for engine in both] == [1, 1]


@pytest.mark.parametrize(
    ("protocol", "leg"), [(name, leg) for name in PAIRED for leg in ("prefill", "decode")]
)
async def test_a_busy_engine_is_avoided(protocol: str, leg: Leg) -> None:
    async with rig(protocol, prefills=2, decodes=2) as one:
        await served_although_one_is_busy(one, leg)
        await one.invariants()
        if (protocol, leg) == ("nixl", "decode"):
            assert len(names(one, "prefill")) == 1, "what prefill did is not done twice"
            assert len(set(names(one, "decode"))) == 1
            assert names(one, "decode")[0] == names(one, "prefill")[0]
        else:
            assert len(set(names(one, leg))) == 2, "each attempt has names of its own"
        await one.fleet.settled()
