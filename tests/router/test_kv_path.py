"""Who is at fault when decode says that the KV did not come."""

from __future__ import annotations

import pytest

from pdcore.router.kv_path import MOST, REMEMBERED_S, KvPath

pytestmark = pytest.mark.unit

P1, P2, P3 = ("p1", "i1"), ("p2", "i1"), ("p3", "i1")
D1, D2, D3 = ("d1", "i1"), ("d2", "i1"), ("d3", "i1")
T0 = 1000.0


def test_one_decode_that_blames_many_is_at_fault() -> None:
    path = KvPath()
    assert path.failed(P1, D1, T0) is None, "one against one says nothing"
    assert path.failed(P2, D1, T0) == D1
    assert path.failed(P3, D1, T0) == D1


def test_one_prefill_that_many_blame_is_at_fault() -> None:
    path = KvPath()
    assert path.failed(P1, D1, T0) is None
    assert path.failed(P1, D2, T0) == P1
    assert path.failed(P1, D3, T0) == P1


def test_of_one_pair_it_is_who_manages_with_nobody() -> None:
    path = KvPath()
    path.worked(P2, D1, T0)
    assert path.failed(P1, D1, T0) == P1
    path = KvPath()
    path.worked(P1, D2, T0)
    assert path.failed(P1, D1, T0) == D1


def test_where_both_manage_with_others_nobody_is_blamed() -> None:
    path = KvPath()
    path.worked(P1, D2, T0)
    path.worked(P2, D1, T0)
    assert path.failed(P1, D1, T0) is None


def test_a_pair_that_works_again_accuses_nobody_any_more() -> None:
    path = KvPath()
    path.failed(P1, D1, T0)
    path.worked(P1, D1, T0)
    assert path.failed(P2, D1, T0) == P2, "for D1 works with P1"


def test_what_is_long_ago_is_forgotten() -> None:
    path = KvPath()
    path.failed(P1, D1, T0)
    assert path.failed(P2, D1, T0 + REMEMBERED_S) is None


def test_other_incarnations_are_somebody_else() -> None:
    path = KvPath()
    path.failed(P1, D1, T0)
    assert path.failed(P2, ("d1", "i2"), T0) is None


def test_what_is_remembered_is_bounded() -> None:
    path = KvPath()
    for number in range(MOST + 10):
        path.worked((f"p{number}", "i1"), D1, T0)
    assert len(path._worked) == MOST
