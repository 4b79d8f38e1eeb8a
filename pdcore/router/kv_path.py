"""Whose fault a failed KV transfer is, when decode says that its prefill failed. Pure.

Decode's word alone does not tell: a decode that cannot receive blames every prefill in turn, a prefill that cannot
send is blamed by every decode. So accusations of a while are compared: one decode that blames several is at fault
itself, one prefill that several blame is at fault; and where it is one against one, whoever has lately managed it
with somebody else is not. Where nothing tells them apart nobody is blamed: retries go to another pair in any case.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from pdcore.router.pick import InstanceKey

REMEMBERED_S: Final = 30.0
MOST: Final = 16384

Pair = tuple[InstanceKey, InstanceKey]
"""(prefill, decode)."""


class KvPath:
    """Which pairs failed and which worked lately. Mutable: two bounded maps of pair to instant, oldest first."""

    def __init__(self) -> None:
        self._failed: OrderedDict[Pair, float] = OrderedDict()
        self._worked: OrderedDict[Pair, float] = OrderedDict()

    def worked(self, prefill: InstanceKey, decode: InstanceKey, now: float) -> None:
        """KV got from one to the other."""
        _put(self._worked, (prefill, decode), now)
        if self._failed:
            self._failed.pop((prefill, decode), None)

    def failed(self, prefill: InstanceKey, decode: InstanceKey, now: float) -> InstanceKey | None:
        """``decode`` blames ``prefill``; who is at fault, None when that cannot be told."""
        _put(self._failed, (prefill, decode), now)
        self._worked.pop((prefill, decode), None)
        for pairs in (self._failed, self._worked):
            _forget(pairs, now)
        blamed_by_decode = sum(1 for _, accuser in self._failed if accuser == decode)
        blaming_prefill = sum(1 for accused, _ in self._failed if accused == prefill)
        if blamed_by_decode != blaming_prefill:
            return decode if blamed_by_decode > blaming_prefill else prefill
        return self._untried(prefill, decode)

    def _untried(self, prefill: InstanceKey, decode: InstanceKey) -> InstanceKey | None:
        """The one of the two that has worked with nobody lately, if the other has."""
        prefill_works = any(one == prefill for one, _ in self._worked)
        decode_works = any(one == decode for _, one in self._worked)
        if prefill_works == decode_works:
            return None
        return decode if prefill_works else prefill


def _put(pairs: OrderedDict[Pair, float], pair: Pair, now: float) -> None:
    pairs[pair] = now
    pairs.move_to_end(pair)
    if len(pairs) > MOST:
        pairs.popitem(last=False)


def _forget(pairs: OrderedDict[Pair, float], now: float) -> None:
    while pairs:
        pair, at = next(iter(pairs.items()))
        if now < at + REMEMBERED_S:
            return
        del pairs[pair]
