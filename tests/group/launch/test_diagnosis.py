"""The earliest line with a known cause is told, warnings only when there is nothing else."""

from __future__ import annotations

import pytest

from pdcore.group.launch.diagnosis import LONGEST, Diagnosis

pytestmark = pytest.mark.unit


def told(*lines: str, status: int = 1) -> str:
    diagnosis = Diagnosis()
    for line in lines:
        diagnosis.line(line)
    return diagnosis.sentence(status)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("E mooncake: transfer of 3 blocks failed", "kv_transfer_failed"),
        ("nixl: NIXL_ERR_BACKEND", "nixl_backend"),
        ("compatibility hash of the peer differs", "pair_differs"),
        ("OSError: [Errno 98] Address already in use", "address_in_use"),
        ("data_parallel_size conflict: 2 and 4", "dp_conflict"),
        ("ModuleNotFoundError: No module named 'nixl'", "transport_missing"),
        ("ibv_open_device failed", "rdma_unavailable"),
        ("UCX: no such device: eth9", "no_such_interface"),
        ("--side-port {{ports.kv_side_channel}}", "unresolved_placeholder"),
        ("sh: vllm: command not found", "not_in_image"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'vllm'", "not_in_image"),
        ("torch.OutOfMemoryError: CUDA out of memory", "out_of_memory"),
        ("ValueError: No available memory for the cache blocks", "no_kv_memory"),
        ("kv_transfer_config was given twice", "two_connectors"),
        ("pdcore.engine: --model / PDCORE_MODEL: /nowhere is no directory", "misconfigured"),
        ("instance chat-1-decode-1 is in use: incarnation x answers at y", "id_in_use"),
    ],
)
def test_every_known_cause(line: str, code: str) -> None:
    sentence = told("starting", line, "Traceback (most recent call last):", "exiting")
    assert f"[{code}]: {line}" in sentence


def test_the_earliest_cause_wins_and_warnings_wait() -> None:
    assert "address_in_use" in told("address already in use", "CUDA out of memory")
    assert "out_of_memory" in told("warning: address already in use", "CUDA out of memory")
    assert "address_in_use" in told("warning: address already in use", "bye")


def test_the_last_line_when_nothing_is_known() -> None:
    assert told("one", "two", "  ") == "two"
    assert told() == ""
    assert len(told("x" * 5000)) == LONGEST


def test_a_signal_is_not_explained_by_whatever_was_written_last() -> None:
    assert told("request answered", status=-9) == ""
    assert "out_of_memory" in told("CUDA out of memory", "bye", status=-6)
