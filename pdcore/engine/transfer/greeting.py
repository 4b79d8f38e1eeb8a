"""Whether a decode rank's hello fits this prefill rank. Pure; asked once per link."""

from __future__ import annotations

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer.plan import RegionShape
from pdcore.engine.transfer.wire import WIRE_VERSION, Hello, RankIdentity


def refusal(hello: Hello, me: RankIdentity, layout: KvLayout, linked_bytes: int) -> str | None:
    """Why the pair cannot work, as one sentence with both values, or None."""
    if hello.version != WIRE_VERSION:
        return f"it speaks wire version {WIRE_VERSION}, not {hello.version}"
    if hello.expected_incarnation != me.incarnation:
        return f"it is incarnation {me.incarnation}, not {hello.expected_incarnation}"
    if hello.layout != layout.fingerprint():
        return f"its KV layout is {layout.fingerprint()}, not {hello.layout}"
    shape = RegionShape(layout, (hello.blocks,), hello.slots)
    if shape.nbytes != linked_bytes:
        return f"{hello.blocks} blocks and {hello.slots} slots are {shape.nbytes} bytes, not {linked_bytes}"
    return None
