"""A generation keeps what could not be told when it was made, and its group's state says so for as long as it runs."""

from __future__ import annotations

import pytest

from pdcore.group.control.generation import TOLD, Generation, frozen, read
from pdcore.group.control.plan import Plan
from pdcore.group.control.state import Facts, state_of
from pdcore.group.spec import spec_of
from pdcore.group.validation.check import check
from pdcore.group.validation.rules import CODES
from tests.group.specs import Document, group
from tests.support.fleet import topology_of

pytestmark = pytest.mark.unit


def made(document: Document) -> Generation:
    spec = spec_of(document)
    return frozen(spec, 1, "0", findings=check(spec))


def test_what_could_not_be_told_is_a_degradation_and_no_other_generation() -> None:
    document = group(backend_version="0.27.0", prefill={"backend_parameters": ["--block-size=16"]})
    generation = made(document)
    assert generation.digest == frozen(spec_of(document), 1, "0").digest
    assert read(generation.document) == generation
    facts = Facts(
        group="g",
        plan=Plan(active=1, replicas={"prefill": 2, "decode": 1, "router": 1}),
        running=generation,
        newest=generation,
        slots={},
        topology=topology_of(),
        package="0",
    )
    told = {one.code: one.sentence for one in state_of(facts).degradations}
    assert set(told) == {"pairing_unverified", "engine_version_below_recipe_floor"}
    assert told["pairing_unverified"].startswith(
        "roles.prefill.backend_parameters: block size cannot be compared"
    )


def test_what_is_not_worth_telling_for_ever_is_not_kept() -> None:
    assert made(group(prefill={"replicas": 1})).advice == ()


def test_what_is_told_are_codes_of_findings() -> None:
    assert CODES.keys() >= TOLD


def test_a_record_of_another_version_has_no_advice() -> None:
    document = dict(made(group()).document)
    for said in ("x", [1], None):
        assert read({**document, "advice": said}).advice == ()
