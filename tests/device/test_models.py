"""Real tiny models on a real device: alone and with a hand-off they are the CPU's, token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pdcore.engine.device import HOST, Device
from pdcore.engine.transfer.device_memory import ALIGNMENT, DeviceRecords, allocate, bound
from pdcore.engine.transfer.plan import RegionShape
from tests.engine.transfer.ranks import LAYOUT
from tests.support.device_ranks import opened
from tests.support.family_models import FAMILIES, write_family

pytestmark = pytest.mark.device

PROMPT = [5, 81, 300, 7, 42, 9, 11, 250, 33, 8, 77, 190, 4, 61, 500, 23, 18, 99, 144, 3, 61]
MOST = 24


@pytest.mark.parametrize("engine", ["shm", "tcp"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_alone_and_handed_off_are_what_the_cpu_computes(
    tmp_path: Path, runtime_dir: Path, device: Device, family: str, engine: str
) -> None:
    directory = write_family(tmp_path / "model", family)
    with opened(directory, HOST, runtime_dir, engine) as ranks:
        expected = ranks.alone(PROMPT, MOST)
    with opened(directory, device, runtime_dir, engine) as ranks:
        alone, pair = ranks.alone(PROMPT, MOST), ranks.handed_off(PROMPT, MOST)
    assert alone.tokens == pair.tokens == expected.tokens
    torch.testing.assert_close(alone.logits, expected.logits, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(pair.logits, expected.logits, atol=2e-3, rtol=2e-3)


def test_memory_begins_where_links_want_it_and_is_read_at_once(device: Device) -> None:
    shape = RegionShape(LAYOUT, (4,), slots=4, probes=2)
    region = allocate(shape.nbytes, device.torch_device)
    assert region.data_ptr() % ALIGNMENT == 0
    region[shape.slot_offset(1)] = 7
    region[shape.probe_offset(1)] = 9
    records = DeviceRecords(region, shape)
    with bound(device.torch_device):
        records.refresh(2, 2)
    assert (records.slots[64], records.probes[64]) == (7, 9)
