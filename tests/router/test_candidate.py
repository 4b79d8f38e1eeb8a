"""A generation that is to be proven is reached by whoever knows its restart's secret, and by nobody else."""

from __future__ import annotations

import pytest

from pdcore.errors import ApiError
from pdcore.registry.store import Put
from pdcore.router.access import Access
from pdcore.router.api_keys import ApiKeys
from pdcore.router.candidate import candidate_of
from pdcore.topology import codec, keys
from pdcore.topology.records import DesiredRecord, DocumentRecord, Record
from tests.router.fleet import MODEL, SPACE, Fleet, running_fleet
from tests.support.fake_engines import COMPLETION, FakeEngine, answer
from tests.support.fleet import topology_of

PROOF = "s3cret"
BODY = {"model": MODEL, "prompt": "x", "max_tokens": 1}


def desired(proof: str = PROOF, candidate: int | None = 2) -> DesiredRecord:
    return DesiredRecord(
        active=1, candidate=candidate, deadline=None, replicas={}, extra={"restart": {"proof": proof}}
    )


@pytest.mark.unit
def test_only_the_secret_of_a_restart_with_a_candidate_names_one() -> None:
    known: dict[str, Record] = {keys.desired("chat"): desired(), keys.desired("over"): desired("x", None)}
    view = topology_of(known)
    assert candidate_of(view, PROOF) == ("chat", 2)
    for wrong in ("", "x", "s3cre", "s3cret ", "пароль"):
        with pytest.raises(ApiError, match="names no generation") as refused:
            candidate_of(view, wrong)
        assert refused.value.status == 403
    empty: dict[str, Record] = {keys.desired("chat"): desired("")}
    with pytest.raises(ApiError):
        candidate_of(topology_of(empty), "")


async def give(fleet: Fleet, record: DesiredRecord) -> None:
    put = Put(SPACE.view + keys.desired("chat"), codec.encode(record))
    committed = await fleet.store.commit((), (put,))
    await fleet.follower.wait_for(committed.revision, 5)


@pytest.mark.integration
async def test_one_request_reaches_the_candidate_and_all_others_the_active_generation() -> None:
    async with (
        FakeEngine([answer(200, COMPLETION)]) as old,
        FakeEngine([answer(200, COMPLETION)]) as new,
        running_fleet() as fleet,
    ):
        await give(fleet, desired())
        for generation, engine in ((1, old), (2, new)):
            await fleet.add(
                f"u{generation}",
                "unified",
                engine,
                incarnation=f"i{generation}",
                group="chat",
                generation=generation,
                protocol="unified",
            )
        assert (await fleet.post(BODY)).headers["x-pdcore-pair"] == "u1"
        proven = await fleet.post(BODY, headers={"x-pdcore-candidate": PROOF})
        assert (proven.status_code, proven.headers["x-pdcore-pair"]) == (200, "u2")
        refused = await fleet.post(BODY, headers={"x-pdcore-candidate": "guess"})
        assert refused.status_code == 403
        await give(fleet, desired(candidate=None)._replace(active=2))
        assert (await fleet.post(BODY)).headers["x-pdcore-pair"] == "u2"


@pytest.mark.integration
async def test_the_secret_is_as_good_as_a_key_and_an_unready_candidate_is_named() -> None:
    access = Access(keys=lambda: ApiKeys({b"?": "somebody"}))
    async with FakeEngine([answer(200, COMPLETION)]) as new, running_fleet(access=access) as fleet:
        await give(fleet, desired())
        await fleet.add(
            "u2", "unified", new, group="chat", generation=2, protocol="unified", state="starting"
        )
        assert (await fleet.post(BODY)).status_code == 401
        waiting = await fleet.post(BODY, headers={"x-pdcore-candidate": PROOF})
        assert waiting.status_code == 503
        assert waiting.json()["error"]["detail"]["excluded"]["u2"] == ["state is starting"]


@pytest.mark.integration
async def test_a_group_whose_members_are_not_there_is_unavailable_and_not_unknown() -> None:
    async with running_fleet() as fleet:
        generation = DocumentRecord({"model_name": MODEL})
        put = Put(SPACE.view + keys.generation("chat", 1), codec.encode(generation))
        await fleet.store.commit((), (put,))
        await give(fleet, desired())
        assert (await fleet.post(BODY)).status_code == 503
        assert (await fleet.post({**BODY, "model": "other"})).status_code == 404
