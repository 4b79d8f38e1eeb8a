"""Each rule of the catalogue finds the one thing that was broken, and nothing in what is shipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
import pytest
import yaml

from pdcore.config.yaml_file import parse_yaml
from pdcore.errors import ConfigError
from pdcore.group.modes.catalogue import FILE, catalogue, read_catalogue
from pdcore.group.modes.mode import Catalogue
from pdcore.group.modes.self_checks import RULES, problems
from pdcore.group.spec import MODES

pytestmark = pytest.mark.unit

TEXT = files("pdcore.group.modes").joinpath(FILE).read_text(encoding="utf-8")
SHIPPED: dict[str, Any] = yaml.load(TEXT, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
Break = Callable[[Any], None]


def mode(document: Any, name: str) -> Any:
    return next(one for one in document["modes"] if one["name"] == name)


def broken(breaking: Break) -> tuple[str, ...]:
    """What the rules say of the shipped catalogue after ``breaking`` changed it."""
    document = copy.deepcopy(SHIPPED)
    breaking(document)
    return problems(msgspec.convert(document, Catalogue))


def remove_custom(document: Any) -> None:
    document["modes"].remove(mode(document, "custom"))


def repeat_a_mode(document: Any) -> None:
    document["modes"].append(copy.deepcopy(mode(document, "sglang-nixl")))


def forget_metrics(document: Any) -> None:
    del document["transfer_metrics"]["nixl"]


def forget_a_lease(document: Any) -> None:
    del document["leases"]["moriio"]


def disagree_on_expiry(document: Any) -> None:
    mode(document, "vllm-nixl")["capabilities"]["kv_expired_metric"] = "vllm:other"


def forget_vendors(document: Any) -> None:
    del mode(document, "sglang-nixl")["vendors"]


def forget_the_transport(document: Any) -> None:
    del mode(document, "sglang-nixl")["transport"]


def give_custom_a_vendor(document: Any) -> None:
    mode(document, "custom")["vendors"] = ["nvidia"]


def empty_the_entrypoint(document: Any) -> None:
    document["routers"]["two-hop"]["entrypoint"] = []


def empty_the_connection(document: Any) -> None:
    document["routers"]["keyspace"] |= {"connection_args": [], "bands": []}


def want_control_without_a_device(document: Any) -> None:
    mode(document, "vllm-mooncake")["nic_plane"] = "control"


def declare_an_unused_band(document: Any) -> None:
    bands = mode(document, "sglang-nixl")["roles"]["prefill"]["bands"]
    bands.append({"name": "extra", "width": "one", "channel": "env"})


def use_a_band_elsewhere(document: Any) -> None:
    mode(document, "sglang-nixl")["roles"]["prefill"]["bands"][0]["channel"] = "env"


def use_an_undeclared_band(document: Any) -> None:
    mode(document, "vllm-nixl")["roles"]["decode"]["bands"] = []


def tell_a_router_of_a_missing_band(document: Any) -> None:
    document["routers"]["two-hop"]["membership"]["add"]["body"]["bootstrap_port"] = "{{peer.ports.bootstrap}}"


def take_away_the_interface(document: Any) -> None:
    del document["routers"]["rendezvous"]["membership"]


def take_away_its_flag(document: Any) -> None:
    document["routers"]["rendezvous"]["membership"]["required_args"] = ["--enable-changes"]


def restart_nobody(document: Any) -> None:
    mode(document, "custom").update(membership="restart", router=None)


def follow_nothing(document: Any) -> None:
    mode(document, "vllm-nixl")["membership"] = "keyspace"


def offer_twice(document: Any) -> None:
    for router in document["routers"].values():
        router["tunable_args"].append({"flag": "--max-attempts"})


def offer_what_is_owned(document: Any) -> None:
    document["routers"]["keyspace"]["tunable_args"].append({"flag": "--store"})


def let_siblings_drift(document: Any) -> None:
    drifted = copy.deepcopy(document["routers"]["rendezvous"]) | {"health": "/other"}
    document["routers"]["drifted"] = drifted
    mode(document, "sglang-nixl")["router"] = "drifted"


def put_blanks_in_a_placeholder(document: Any) -> None:
    document["backends"]["vllm"]["command"].append("{{ model_name }}")


def forget_the_last_tp_rule(document: Any) -> None:
    mode(document, "vllm-nixl")["tp_rules"].pop()


def write_another_range(document: Any) -> None:
    mode(document, "vllm-nixl")["engine_versions"] = "==0.27"


CASES: list[tuple[Break, str]] = [
    (remove_custom, "mode custom is there 0 times"),
    (repeat_a_mode, "mode sglang-nixl is there 2 times"),
    (forget_metrics, "lease nixl has no transfer metrics"),
    (forget_a_lease, "transfer metrics moriio have no lease"),
    (disagree_on_expiry, "mode vllm-nixl says kv_expired_metric vllm:other, its lease vllm:nixl_num"),
    (forget_vendors, "mode sglang-nixl adds to engines and names no vendors or no transport"),
    (forget_the_transport, "mode sglang-nixl adds to engines and names no vendors or no transport"),
    (give_custom_a_vendor, "mode custom may name no vendors"),
    (empty_the_entrypoint, "router two-hop has no entrypoint or no connection_args"),
    (empty_the_connection, "router keyspace has no entrypoint or no connection_args"),
    (want_control_without_a_device, "mode vllm-mooncake is on the control plane and uses no {{net_device}}"),
    (declare_an_unused_band, "mode sglang-nixl, prefill: the band extra is declared for env and not used"),
    (use_a_band_elsewhere, "mode sglang-nixl, prefill: the band bootstrap is declared for env and not used"),
    (use_an_undeclared_band, "mode vllm-nixl, decode: the band kv_side_channel is used and not declared"),
    (tell_a_router_of_a_missing_band, "mode vllm-nixl: the membership body names the band bootstrap"),
    (take_away_the_interface, "mode vllm-mooncake is dynamic, and its router has no way"),
    (take_away_its_flag, "mode sglang-nixl is dynamic, and its router is started without --enable-changes"),
    (restart_nobody, "mode custom restarts a router that it does not manage"),
    (follow_nothing, "mode vllm-nixl has engines that are not in the keyspace"),
    (offer_twice, "router two-hop offers --max-attempts twice"),
    (offer_what_is_owned, "router keyspace offers --store and owns it"),
    (let_siblings_drift, "the routers of sglang-mooncake and sglang-nixl differ in health"),
    (put_blanks_in_a_placeholder, "{{ model_name }} is not a placeholder"),
    (forget_the_last_tp_rule, "mode vllm-nixl has no tensor parallel rule for versions that nobody knows"),
    (write_another_range, "mode vllm-nixl: '==0.27' is not a range"),
]


def test_the_shipped_catalogue_keeps_every_rule_and_has_every_mode() -> None:
    assert problems(msgspec.convert(SHIPPED, Catalogue)) == ()
    assert tuple(one.name for one in catalogue().modes) == MODES


@pytest.mark.parametrize(("breaking", "sentence"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_broken_rule_is_named(breaking: Break, sentence: str) -> None:
    found = broken(breaking)
    assert any(one.startswith(sentence) for one in found), found


def test_the_shipped_file_has_no_aliases_and_no_repeated_keys() -> None:
    assert parse_yaml(TEXT, FILE) == SHIPPED


def test_siblings_may_differ_where_it_is_said() -> None:
    def tune_ascend_otherwise(document: Any) -> None:
        other = copy.deepcopy(document["routers"]["two-hop"]) | {"tunable_args": []}
        document["routers"]["ascend"] = other
        mode(document, "vllm-ascend-mooncake")["router"] = "ascend"

    assert broken(tune_ascend_otherwise) == ()


def test_every_rule_has_a_case_that_breaks_it() -> None:
    caught = set()
    for breaking, _ in CASES:
        document = copy.deepcopy(SHIPPED)
        breaking(document)
        made = msgspec.convert(document, Catalogue)
        caught |= {rule for rule in RULES if list(rule(made))}
    assert caught == set(RULES)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("nic_plane: data", "nic_plane: fast", "Invalid enum value 'fast'"),
        ("lease: nixl", "laese: nixl", "unknown field `laese`"),
        ("name: custom", "name: other", "Invalid enum value 'other'"),
        ("siblings:", "siblings: [\n", "catalogue.yaml: while parsing"),
    ],
)
def test_a_file_of_another_shape_is_refused(old: str, new: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_catalogue(TEXT.replace(old, new, 1))
    assert sentence in str(refused.value)


def test_every_broken_rule_is_told_at_once() -> None:
    doubly = TEXT.replace('engine_versions: ">=0.27.1"', 'engine_versions: "new"').replace(
        "    lease: sglang-nixl\n", "    lease: none\n"
    )
    with pytest.raises(ConfigError) as refused:
        read_catalogue(doubly)
    assert len(refused.value.problems) >= 3
