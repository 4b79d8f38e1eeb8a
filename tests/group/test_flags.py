"""Flags are understood however people write them."""

from __future__ import annotations

import pytest

from pdcore.group.flags import TENSOR_PARALLEL, Flags, argv_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "written",
    [
        ["--tensor-parallel-size=4"],
        ["--tensor-parallel-size", "4"],
        ["--tensor-parallel-size 4"],
        ["--tensor_parallel_size=4"],
        ["--Tensor-Parallel-Size", "4"],
        ["-tp", "4"],
        ["--tp=2", "--tp-size 4"],
        ["--enable-x", "--tp", "4"],
    ],
)
def test_every_spelling_of_a_flag_is_the_same_flag_and_the_last_counts(written: list[str]) -> None:
    assert Flags.of(written).number(TENSOR_PARALLEL) == 4


@pytest.mark.parametrize(
    "written", [[], ["--tp"], ["--tp", "--dp", "2"], ["--tp=x"], ["--tp=0"], ["--tp=-1"]]
)
def test_what_says_no_size_is_none(written: list[str]) -> None:
    assert Flags.of(written).number(TENSOR_PARALLEL) is None


def test_a_negative_number_is_a_value_and_not_a_flag() -> None:
    assert Flags.of(["--seed", "-1"]).value(("seed",)) == "-1"


def test_a_value_with_blanks_stays_one_word() -> None:
    assert argv_of(['--kv-transfer-config {"a": 1, "b": 2}', "--x=a b"]) == (
        "--kv-transfer-config",
        '{"a": 1, "b": 2}',
        "--x=a b",
    )
