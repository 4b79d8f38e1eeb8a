"""The page about modes says what the catalogue says."""

from __future__ import annotations

import re
from typing import Final

import pytest

from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.mode import Mode
from pdcore.group.modes.shared_cache import shared_caches
from pdcore.group.render.facts import Place, PortBand, facts_of, peer_facts
from pdcore.group.spec import MODES
from tests.group.render.rendering import group_facts, peers, spec
from tests.support.pages import DOCS

pytestmark = pytest.mark.unit

PAGE: Final = (DOCS / "group-modes.md").read_text(encoding="utf-8")
ROWS: Final = [line for line in PAGE.splitlines() if line.startswith("| ")]


def row(mode: Mode, table: int) -> str:
    """The line about ``mode`` in the page's n-th table that has one."""
    found = [line for line in ROWS if f"`{mode.name}`" in line.split("|")[1]]
    assert len(found) == 3, found
    return found[table]


@pytest.mark.parametrize("name", MODES)
def test_each_mode_is_in_every_table(name: str) -> None:
    mode = catalogue().mode(name)
    what, ports, caches = (row(mode, table) for table in range(3))
    assert (mode.engine_versions or "").removeprefix(">=") in what
    assert mode.router_protocol is None or f"`{mode.router_protocol}`" in what
    lease = catalogue().lease_of(mode)
    if lease is not None and lease.parameter is not None:
        assert f" {lease.platform_default_s or lease.engine_default_s} s" in what
    for recipe in mode.roles.values():
        assert all(f"`{band.name}`" in ports for band in recipe.bands)
    known = shared_caches().get(mode.name)
    assert (known is None) == (caches.count("none") == 2)
    for provider in () if known is None else known.services:
        assert f"`{provider}`" in caches


def test_every_placeholder_is_explained() -> None:
    mode = catalogue().mode("vllm-nixl")
    group = group_facts(spec("vllm-nixl", image_name="image", backend_parameters=["--tp=1"]))
    place = Place(
        instance_id="i",
        worker_ip="10.0.0.1",
        net_device="eth0",
        port=1,
        run_dir="/run",
        bands={"BAND": PortBand(base=2)},
    )
    known = {**facts_of(catalogue(), mode, group, group.roles["prefill"], place)}
    known |= peer_facts(peers({"BAND": 3})[1])
    known |= {"router.protocol": "nixl"}
    told_only_to_ours = {"ascend_connector", "peer.role", "peer.url_encoded", "peer.ports.BAND.count"}
    for name in known.keys() - told_only_to_ours:
        head, _, rest = name.partition(".")
        shown = f"roles.ROLE.{rest.partition('.')[2]}" if head == "roles" else name
        short = f"`{shown.rpartition('.')[2]}`"
        assert f"{{{{{shown}}}}}" in PAGE or (head == "roles" and short in PAGE), name


def test_it_names_every_outcome() -> None:
    for code in (
        "no_built_in_recipe",
        "multiple_vendors",
        "vendors_unknown",
        "vendor_not_in_cluster",
        "no_preferred_recipe",
    ):
        assert f"`{code}`" in PAGE
    assert set(re.findall(r"`(MooncakeHybridConnector|MooncakeConnectorV1)`", PAGE)) == {
        "MooncakeHybridConnector",
        "MooncakeConnectorV1",
    }
