"""Every mode has an example that is accepted, and the published schema is what the types say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pdcore.group.examples import example
from pdcore.group.finding import SpecRefused
from pdcore.group.kinds import declared
from pdcore.group.schema import schema
from pdcore.group.spec import MODES, GroupSpec, ModeName, RoleSpec, parse_spec, spec_of
from pdcore.group.validation.check import check
from tests.group.specs import LLAMA

pytestmark = pytest.mark.unit

PUBLISHED = Path(__file__).parents[2] / "docs" / "group.schema.json"


@pytest.mark.parametrize("mode", MODES)
def test_an_example_is_accepted_without_a_remark(mode: ModeName, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    spec = parse_spec(example(mode, str(tmp_path)), "example")
    assert (spec.mode, spec.replicas) == (mode, {"prefill": 2, "decode": 1, "router": 1})
    assert check(spec) == ()


@pytest.mark.parametrize("mode", MODES)
def test_an_example_mentions_every_field(mode: ModeName) -> None:
    text = example(mode)
    for one in declared(GroupSpec):
        assert f"{one.name}:" in text
    for one in declared(RoleSpec):
        assert f"{one.name}:" in text or one.name == "protocol"


@pytest.mark.parametrize("mode", MODES)
def test_every_commented_field_may_be_uncommented(mode: ModeName) -> None:
    """A comment of the form ``key:`` is a field that is null or has its default."""
    lines = example(mode, "/m").splitlines()
    bare = [
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ":  # " in line else line
        for line in lines
    ]
    document = yaml.safe_load("\n".join(bare))
    assert set(document) > {"env", "gpu_selector", "network"}
    document["network"] = {}
    assert spec_of(document).mode == mode


def test_the_published_schema_is_what_the_types_say() -> None:
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == json.loads(json.dumps(schema()))


def test_the_schema_knows_each_key_and_no_other() -> None:
    root = schema()
    properties = root["properties"]
    assert isinstance(properties, dict)
    assert set(properties) == {one.name for one in declared(GroupSpec)}
    assert root["required"] == ["name", "model", "disaggregation"]
    assert root["additionalProperties"] is False
    for key in properties:
        with pytest.raises(SpecRefused) as wrong:
            spec_of({"name": "g", "model": "m", "disaggregation": {"mode": "pdcore"}, key: object()})
        assert all(one.code != "unknown_key" for one in wrong.value.findings)
