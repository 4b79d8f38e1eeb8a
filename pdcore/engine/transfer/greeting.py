"""Whether a decode rank's hello, and then its handshakes, fit this prefill rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdcore.engine.kv.layout import KvGroup, KvLayout
from pdcore.engine.transfer.links import Pair
from pdcore.engine.transfer.mapping import (
    GroupRank,
    GroupSizes,
    RankMapping,
    mapping_problems,
    spread_of,
)
from pdcore.engine.transfer.orders import DecodeGroup
from pdcore.engine.transfer.pair_plan import PairPlan
from pdcore.engine.transfer.plan import RegionShape, lists_problem
from pdcore.engine.transfer.wire import WIRE_VERSION, Greeting, Handshake, Hello, RankIdentity


def other_version(greeting: Greeting | Hello) -> str | None:
    """Why nothing else of this hello can be read, or None."""
    if greeting.version == WIRE_VERSION:
        return None
    return f"it speaks wire version {WIRE_VERSION}, not {greeting.version}"


@dataclass(frozen=True, slots=True)
class Met:
    """A decode rank whose hello fits: what its messages are judged by, and how KV goes to it."""

    pair: Pair
    plan: PairPlan


def greet(
    hello: Hello,
    me: RankIdentity,
    layout: KvLayout,
    sizes: GroupSizes,
    source: RegionShape,
    linked_bytes: int,
) -> Met | str:
    """The pair, or every reason why it cannot work. ``layout`` is the whole model's, ``source`` our own shard's."""
    problems = tuple(hello_problems(hello, me, layout, sizes))
    if problems:
        return "; ".join(problems)
    decode = GroupSizes(hello.cp_size, hello.tp_size)
    shape = RegionShape(layout.shard(decode.tp, hello.decode.tp), hello.blocks, hello.slots, hello.probes)
    if shape.nbytes != linked_bytes:
        counts = f"{shape.blocks} blocks, {shape.slots} slots and {shape.probes} probe slots"
        return f"{counts} are {shape.nbytes} bytes, not {linked_bytes}"
    mapping = RankMapping(sizes, decode, layout, spread_of(hello.decode.instance_id, hello.decode.dp))
    mine, theirs = GroupRank(me.cp, me.tp), GroupRank(hello.decode.cp, hello.decode.tp)
    if mine not in mapping.sources_of(theirs):
        return f"rank {mine} has nothing for decode rank {theirs}"
    plan = PairPlan.build(mapping, mine, theirs, source, shape)
    return Met(Pair(hello.decode, _group(hello), frozenset(mapping.destinations_of(mine)), shape), plan)


def _group(hello: Hello) -> DecodeGroup:
    decode = hello.decode
    return DecodeGroup(
        instance_id=decode.instance_id,
        incarnation=decode.incarnation,
        dp=decode.dp,
        cp_size=hello.cp_size,
        tp_size=hello.tp_size,
    )


def hello_problems(hello: Hello, me: RankIdentity, layout: KvLayout, sizes: GroupSizes) -> Iterator[str]:
    """Every reason why the pair cannot work, as sentences with both values. ``layout`` is the whole model's."""
    if hello.expected_incarnation != me.incarnation:
        yield f"it is incarnation {me.incarnation}, not {hello.expected_incarnation}"
    differences = list(layout_differences(layout, hello.layout))
    yield from differences
    decode = GroupSizes(hello.cp_size, hello.tp_size)
    if not (hello.decode.cp < decode.cp and hello.decode.tp < decode.tp):
        yield f"decode rank {hello.decode.cp}.{hello.decode.tp} is outside its group of {decode.cp} x {decode.tp}"
    if not differences:
        yield from mapping_problems(sizes, decode, layout)
        if len(hello.blocks) != len(layout.groups):
            yield f"the layout has {len(layout.groups)} groups, decode counts blocks of {len(hello.blocks)}"


def layout_differences(ours: KvLayout, theirs: KvLayout) -> Iterator[str]:
    """In what two whole layouts differ; a few sentences at most."""
    if ours == theirs:
        return
    our_keys, their_keys = [g.key for g in ours.groups], [g.key for g in theirs.groups]
    if our_keys != their_keys:
        yield f"its KV groups are {', '.join(our_keys)}, decode's {', '.join(their_keys)}"
        return
    for group, other in zip(ours.groups, theirs.groups, strict=True):
        yield from _group_differences(group, other)


def _group_differences(ours: KvGroup, theirs: KvGroup) -> Iterator[str]:
    for name in ("block_size", "order", "window"):
        if getattr(ours, name) != getattr(theirs, name):
            values = f"{name} is {getattr(ours, name)}, decode's {getattr(theirs, name)}"
            yield f"KV group {ours.key}: its {values}"
    if len(ours.entries) != len(theirs.entries):
        counts = f"{len(ours.entries)} entries, decode's {len(theirs.entries)}"
        yield f"KV group {ours.key}: it has {counts}"
        return
    for entry, other in zip(ours.entries, theirs.entries, strict=True):
        if entry != other:
            yield f"KV group {ours.key}: its entry is {entry!r}, decode's {other!r}"
            return  # the others differ in the same way, or the first says enough


def handshake_problem(message: Handshake, shape: RegionShape) -> str | None:
    """Why the destination that a handshake names does not fit decode's own region, or None."""
    if message.slot >= shape.slots:
        return f"slot {message.slot} is outside 0..{shape.slots - 1}"
    problem = lists_problem(message.groups, shape, message.prompt_len)
    if problem is not None:
        return problem
    for group, blocks in zip(shape.layout.groups, message.groups, strict=True):
        needed = group.blocks_for(message.prompt_len)
        if len(blocks) != needed:
            return f"{message.prompt_len} tokens need {needed} blocks, not {len(blocks)}"
    return None
