"""What a decode rank's loop costs per step beside its model: everything real, only the model answers at once.

The scheduler, the consensus, the session with a prefill session at its other end, and the line to a leader that
listens. The parts are timed in a second run, because timing them costs something too.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import zmq

from bench.figures import Figure, limit, quantile
from pdcore.clock import SystemClock
from pdcore.engine.device import HOST
from pdcore.engine.handoffs import Handoffs
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.loop import Decider, RankLoop
from pdcore.engine.messages import Limits, Sampling, Start
from pdcore.engine.model.progress import Progress
from pdcore.engine.rank_spec import RankSpec
from pdcore.engine.reporting import Beats
from pdcore.engine.roles import RoleParts, Surroundings, decider, open_side
from pdcore.engine.sampled import Sampled
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.scheduler.request import Request
from pdcore.engine.sides import Side
from pdcore.engine.step_link import StepLeader
from pdcore.engine.transfer.orders import Expect, Handshaken, PrefillGroup, PrefillPeer, Send

RUNNING: Final = 64
STEPS: Final = 300
RUNS: Final = 3
PROMPT: Final = 256
CONTEXT: Final = 2048
BLOCK: Final = 16
BUDGET_S: Final = 30.0
TIMED: Final = frozenset({"plan", "complete", "poll", "receive", "send", "statistics"})
"""Methods called at most a few times per step: timing them costs little."""
SPEC: Final = dict[str, Any](
    incarnation="1",
    rank_ip="127.0.0.1",
    beat_fd=None,
    model="",
    device="cpu",
    dtype="float32",
    block_size=BLOCK,
    kv_tokens=RUNNING * CONTEXT,
    max_model_len=CONTEXT,
    max_batch=RUNNING,
    max_prefill_tokens=CONTEXT,
    max_queue=2 * RUNNING,
    num_reserved_decode_tokens=64,
    transfer_threads=1,
    torch_threads=1,
    log_format="json",
    log_level="info",
)
LAYOUT: Final = KvLayout.dense(
    layers=2, kv_heads=2, head_dim=16, block_size=BLOCK, itemsize=4, dtype_name="float32"
)


class InstantModel:
    """Samples the same token for everybody. ``seconds`` is what that took, ``batch`` for how many."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.batch = 0

    def run(self, batch: Sequence[Compute], requests: Sequence[Request], progress: Progress) -> Sampled:
        began = time.perf_counter()
        tokens = {item.request_id: 7 for item in batch}
        self.batch = len(batch)
        self.seconds += time.perf_counter() - began
        return Sampled(tokens, {})


class Timed:
    """``target`` with the seconds of its ``TIMED`` methods summed in ``parts`` under ``name.method``."""

    def __init__(self, target: object, name: str, parts: dict[str, float]) -> None:
        self._target = target
        self._name = name
        self._parts = parts

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._target, attribute)
        return self._timed(value, f"{self._name}.{attribute}") if attribute in TIMED else value

    def _timed(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                result = method(*arguments, **named)
                return list(result) if isinstance(result, Iterator) else result
            finally:
                self._parts[name] += time.perf_counter() - began

        return call


def measure(steps: int = STEPS) -> list[Figure]:
    """The loop's time per step outside the model, and its largest parts.

    The best of three runs counts: what else the machine does only adds to one.
    """
    p50 = min(quantile(_steps(steps, None), 50) for _ in range(RUNS))
    parts: dict[str, float] = defaultdict(float)
    timed = _steps(steps, parts)
    total = limit(f"loop beside the model, {RUNNING} running, p50", p50 * 1000, "ms/step", 0.3)
    mean_ms = sum(timed) / len(timed) * 1000
    return [total, *_parts(parts, steps, mean_ms)]


def _parts(parts: Mapping[str, float], steps: int, mean_ms: float) -> list[Figure]:
    per_step = {name: seconds / steps * 1000 for name, seconds in parts.items()}
    largest = sorted(per_step, key=lambda name: -per_step[name])[:6]
    rest = mean_ms - sum(per_step.values())
    told = [(name, per_step[name]) for name in largest] + [("everything else", rest)]
    return [
        Figure(name=f"  {name}, mean", value=value, unit="ms/step", beside="all parts", reference=mean_ms)
        for name, value in told
    ]


def _steps(count: int, parts: dict[str, float] | None) -> list[float]:
    """Seconds of ``count`` steps outside the model, with ``RUNNING`` requests in each."""
    with decode_loop(RUNNING, InstantModel(), parts) as stage:
        loop, model = stage.loop, stage.model
        took: list[float] = []
        for number in range(count + 20):
            model.seconds = 0.0
            if number == 20 and parts is not None:
                parts.clear()
            began = time.perf_counter()
            computed = loop.turn()
            took.append(time.perf_counter() - began - model.seconds)
            assert computed, "the batch ended early"
        return took[20:]


@dataclass(frozen=True, slots=True)
class Stage:
    """A decode loop, the prefill rank it gets its KV from, and the leader it hears."""

    loop: RankLoop
    model: InstantModel
    source: RoleParts
    leader: zmq.Socket[bytes]
    rank: bytes

    def start(self, room: int, group: PrefillGroup, remaining_ms: int = 600_000) -> None:
        """Have the leader give the rank a request whose KV ``group`` has; the rank may not have connected yet."""
        give_up_at = time.monotonic() + BUDGET_S
        frames = [self.rank, msgspec.msgpack.encode(_start(room, group, remaining_ms))]
        while True:
            try:
                self.leader.send_multipart(frames)
                return
            except zmq.ZMQError:
                assert time.monotonic() < give_up_at, "the rank does not connect"
                self.leader.poll(1)


@contextmanager
def decode_loop(running: int, model: InstantModel, parts: dict[str, float] | None = None) -> Iterator[Stage]:
    """A decode loop whose ``running`` requests have all arrived."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdcore-bench-")))
        context = stack.enter_context(zmq.Context())
        leader = stack.enter_context(_leader(context, f"ipc://{directory}/dispatch"))
        prefill, decode = (_around(role, directory, context, stack) for role in ("prefill", "decode"))
        source, target = open_side(prefill), open_side(decode)
        link = stack.enter_context(LeaderLink(context, decode.spec.dispatch, decode.spec.identity))
        group = stack.enter_context(StepLeader(context, "", ()))
        loop = RankLoop(
            decode.spec.position,
            _seen_decider(decider(decode), parts),
            side=cast(Side, _seen(target.side, "session", parts)),
            group=cast(StepLeader, _seen(group, "group", parts)),
            model=model,
            leader=cast(LeaderLink, _seen(link, "leader", parts)),
            beats=Beats(None),
            clock=SystemClock(),
        )
        stage = Stage(loop, model, source, leader, decode.spec.identity)
        _start_all(stage, running)
        yield stage


def _seen(target: object, name: str, parts: dict[str, float] | None) -> object:
    return target if parts is None else Timed(target, name, parts)


def _seen_decider(real: Decider, parts: dict[str, float] | None) -> Decider:
    return Decider(
        scheduler=cast(Scheduler, _seen(real.scheduler, "scheduler", parts)),
        blocks=real.blocks,
        handoffs=cast(Handoffs, _seen(real.handoffs, "handoffs", parts)),
    )


@contextmanager
def _leader(context: zmq.Context[zmq.Socket[bytes]], address: str) -> Iterator[zmq.Socket[bytes]]:
    """Takes whatever a rank says, and keeps it."""
    with context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.bind(address)
        yield socket


def _around(
    role: str, directory: Path, context: zmq.Context[zmq.Socket[bytes]], stack: ExitStack
) -> Surroundings:
    directory.chmod(0o700)
    return Surroundings(
        spec=RankSpec(
            role=role,
            instance_id=role,
            dispatch=f"ipc://{directory}/dispatch",
            runtime_dir=str(directory),
            **SPEC,
        ),
        device=HOST,
        stack=stack,
        context=context,
        layout=LAYOUT,
        blocks=RUNNING * CONTEXT // BLOCK,
        limits=SchedulerLimits(
            context_length=CONTEXT,
            max_batch=RUNNING,
            max_prefill_tokens=CONTEXT,
            max_queue=2 * RUNNING,
            reserved_tokens=64,
            slots=2 * RUNNING,
        ),
        vocab_size=512,
    )


def _start_all(stage: Stage, running: int) -> None:
    """Start ``running`` requests and hand off the KV of each, until all are in one batch."""
    give_up_at = time.monotonic() + BUDGET_S
    side, group = stage.source.side, group_of(stage.source)
    for room in range(1, running + 1):
        expected = Expect(room=room, expected_peer=None, prompt_len=PROMPT, remaining_ms=600_000)
        side.obey(expected, time.monotonic())
        stage.start(room, group)
    blocks = (tuple(range(PROMPT // BLOCK)),)
    while stage.model.batch < running:
        assert time.monotonic() < give_up_at, f"{stage.model.batch} of {running} requests run"
        stage.loop.turn()
        for event in side.poll(time.monotonic()):
            if isinstance(event, Handshaken):
                sent = Send(room=event.room, blocks=blocks, first_token=7, kv_len=PROMPT)
                side.obey(sent, time.monotonic())


def group_of(source: RoleParts) -> PrefillGroup:
    """How a leader names the prefill rank ``source``."""
    assert source.rank_port is not None, "a prefill rank listens"
    peer = PrefillPeer(
        instance_id="prefill",
        incarnation="1",
        dp=0,
        cp=0,
        tp=0,
        rank_ip=source.rank_ip,
        rank_port=source.rank_port,
        transfer=source.transfer,
    )
    return PrefillGroup(
        instance_id="prefill", incarnation="1", dp=0, dp_size=1, cp_size=1, tp_size=1, ranks=(peer,)
    )


def _start(room: int, group: PrefillGroup, remaining_ms: int) -> Start:
    return Start(
        request_id=f"cmpl-{room:032x}",
        room=room,
        prompt=tuple(range(PROMPT)),
        sampling=Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=1),
        limits=Limits(max_tokens=CONTEXT, stop_token_ids=(), ignore_eos=True),
        remaining_ms=remaining_ms,
        prefill=group,
    )
