"""``pdcore group apply`` refuses what cannot work, with every reason, and leaves the saved spec untouched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pdcore.cli import main
from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.store import Put
from pdcore.topology.keys import Keyspace
from tests.group.small_fleet import fleet
from tests.group.specs import Document, group
from tests.support.etcd_server import EtcdServer, etcd_server

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


def pdcore(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["group", *arguments])


async def spec_revision(etcd: EtcdServer, cluster: str) -> int | None:
    view = Keyspace(cluster=cluster).view
    async with open_store(StoreAccess(url=etcd.url, timeout_s=5)) as store:
        snapshot = await store.list(view)
    found = snapshot.entries.get(f"{view}groups/g/spec")
    return None if found is None else found.mod_revision


async def put_fleet(etcd: EtcdServer, cluster: str) -> None:
    view = Keyspace(cluster=cluster).view
    async with open_store(StoreAccess(url=etcd.url, timeout_s=5)) as store:
        await store.commit((), tuple(Put(view + key, value) for key, value in fleet().items()))


def apply(etcd: EtcdServer, cluster: str, tmp_path: Path, document: Document) -> Result:
    file = tmp_path / "group.yaml"
    file.write_text(json.dumps(document))
    return pdcore("apply", str(file), "--store", etcd.url, "--cluster", cluster)


def test_every_reason_is_given_and_nothing_is_saved(etcd: EtcdServer, tmp_path: Path) -> None:
    good = group(disaggregation={"vendor": "nvidia"})
    saved = apply(etcd, "refusing", tmp_path, good)
    assert (saved.exit_code, saved.output.partition(";")[0]) == (0, "group g is saved")
    revision = asyncio.run(spec_revision(etcd, "refusing"))
    assert revision is not None
    bad = group(
        lora_list=["a"],
        prefill={"backend_parameters": ["--max-model-len=128k"]},
        decode={"backend_parameters": ["--max-model-len=32k"]},
    )
    refused = apply(etcd, "refusing", tmp_path, bad)
    assert refused.exit_code == 2
    assert [line.rpartition(" ")[2] for line in refused.output.splitlines()] == [
        "[lora_with_disaggregation]",
        "[pairing_context_length]",
    ]
    assert "prefill has 128k (128000), decode 32k (32000)" in refused.output
    for form in (bad | {"wat": 1}, good | {"roles": "x"}):
        assert apply(etcd, "refusing", tmp_path, form).exit_code == 2
    assert asyncio.run(spec_revision(etcd, "refusing")) == revision


def test_a_mode_must_fit_what_the_fleet_runs_on_unless_the_spec_knows_better(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    asyncio.run(put_fleet(etcd, "on-cpu"))
    refused = apply(etcd, "on-cpu", tmp_path, group())
    assert refused.exit_code == 2
    assert "it needs nvidia, the cluster has cpu" in refused.output
    assert "[vendor_not_in_cluster]" in refused.output
    assert apply(etcd, "on-cpu", tmp_path, group(disaggregation={"vendor": "nvidia"})).exit_code == 0
