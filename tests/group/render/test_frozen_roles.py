"""Members of a frozen generation are rendered like those of the spec it was frozen from."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdcore.group.control.generation import frozen
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.render.engine import render_engine
from pdcore.group.render.facts import Place, PortBand
from pdcore.group.render.frozen_choices import frozen_choices
from pdcore.group.render.frozen_roles import UnreadableRoles, frozen_group
from pdcore.group.spec import MODES
from tests.group.render.rendering import member, spec

pytestmark = pytest.mark.unit

PLACE = Place(
    instance_id="g-1-decode-1",
    worker_ip="10.0.0.7",
    net_device="eth1",
    port=40000,
    bands={"kv_side_channel": PortBand(base=40001)},
    run_dir="/run/g",
)


def test_a_frozen_member_is_the_specs_member() -> None:
    made = spec(
        "vllm-nixl",
        backend_parameters=["--max-model-len=4096"],
        decode={
            "env": {"A": "1"},
            "gpu_selector": {"gpus_per_replica": 2},
            "extended_kv_cache": {"kind": "local"},
        },
        router={"backend_parameters": ["--max-attempts=2"]},
    )
    generation = frozen(made, 1, "0")
    group = frozen_group(
        "g", generation.document, python="python3", store="etcd://10.0.0.1:2379", cluster="default"
    )
    assert set(group.roles) == {"prefill", "decode", "router"}
    again = render_engine(catalogue(), catalogue().mode("vllm-nixl"), group, group.roles["decode"], PLACE)
    assert again.command == member(made, "decode").command
    assert again.environment == member(made, "decode").environment


def test_the_models_choice_is_kept_and_makes_no_other_generation() -> None:
    made = spec("vllm-ascend-mooncake")
    unread = frozen(made, 1, "0", {"ascend_connector": "MooncakeHybridConnector"})
    later = frozen(made, 1, "0", {"ascend_connector": "MooncakeConnectorV1"})
    assert unread.digest == later.digest == frozen(made, 1, "0").digest
    group = frozen_group("g", unread.document, python="p", store="s", cluster="c")
    assert group.ascend_connector == "MooncakeHybridConnector"


@pytest.mark.parametrize("document", [{}, {"roles": {}, "kv_load_failure_policy": "perhaps"}])
def test_a_record_that_is_none_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(UnreadableRoles):
        frozen_group("g", document, python="p", store="s", cluster="c")


def test_a_role_that_is_none_is_refused() -> None:
    document = {"generation": 1, "model": "m", "model_name": "m", "roles": {"decode": {"backend": "none"}}}
    with pytest.raises(UnreadableRoles, match=r"decode\.backend: 'none' is not one of"):
        frozen_group("g", document, python="p", store="s", cluster="c")


@pytest.mark.parametrize("mode", MODES)
def test_only_a_mode_that_asks_the_model_has_a_choice_to_keep(mode: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    wanted = {"ascend_connector": "MooncakeConnectorV1"} if mode == "vllm-ascend-mooncake" else {}
    made = spec(mode, model=str(tmp_path))
    assert frozen_choices(made, catalogue().mode(mode)) == wanted


def test_a_model_that_is_elsewhere_gets_the_connector_that_takes_both() -> None:
    mode = catalogue().mode("vllm-ascend-mooncake")
    for model in ("Qwen/Qwen3-8B", "/no/such/directory"):
        made = spec("vllm-ascend-mooncake", model=model)
        assert frozen_choices(made, mode) == {"ascend_connector": "MooncakeHybridConnector"}
