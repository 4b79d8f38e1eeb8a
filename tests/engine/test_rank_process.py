"""A rank as a child process: gets its spec, is watched and never left behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import pytest

from pdcore.engine.rank_process import RankProcess
from pdcore.engine.rank_spec import RankSpec

pytestmark = pytest.mark.integration

COPY_SPEC = (
    "import os, sys; data = open(int(sys.argv[-1]), 'rb').read(); path = data.split(b'@')[1];"
    "open(path, 'wb').write(data); os.write(int(os.environ.get('BEAT', 1)), b'')"
)


def spec(model: str = "m", beat_fd: int | None = None) -> RankSpec:
    return RankSpec(
        role="unified",
        instance_id="u",
        incarnation="i",
        rank_ip="127.0.0.1",
        dispatch="ipc:///nowhere",
        runtime_dir="/nowhere",
        beat_fd=beat_fd,
        model=model,
        device="cpu",
        dtype="float32",
        block_size=16,
        kv_tokens=64,
        max_model_len=None,
        max_batch=1,
        max_prefill_tokens=16,
        max_queue=4,
        num_reserved_decode_tokens=0,
        transfer_threads=1,
        torch_threads=None,
        log_format="text",
        log_level="info",
    )


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def test_the_spec_arrives_whole_and_the_exit_status_comes_back(tmp_path: Path) -> None:
    copy = tmp_path / "spec"
    given = spec(model=f"@{copy}@" + "x" * 20_000)
    with RankProcess(given, python(COPY_SPEC + "; sys.exit(7)")) as rank:
        async with asyncio.timeout(20):
            statuses = await asyncio.gather(rank.wait_exit(), rank.wait_exit())
        assert list(statuses) == [7, 7]
    assert msgspec.msgpack.decode(copy.read_bytes(), type=RankSpec) == given


def test_leaving_kills_and_reaps() -> None:
    with RankProcess(spec(), python("import time; time.sleep(60)")) as rank:
        assert not rank.has_exited()
        assert os.getpgid(rank.pid) == rank.pid
        pid = rank.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_rank_inherits_its_beat_pipe_and_nothing_else() -> None:
    reading, writing = os.pipe()
    other, other_end = os.pipe()
    try:
        code = f"import os; os.write({writing}, b'beat'); os.path.exists('/proc/self/fd/{other}') and os._exit(9)"
        with RankProcess(spec(beat_fd=writing), python(code)) as rank:
            assert asyncio.run(rank.wait_exit()) == 0
        assert os.read(reading, 10) == b"beat"
    finally:
        for descriptor in (reading, writing, other, other_end):
            os.close(descriptor)


def test_a_spec_too_large_for_a_pipe_is_refused_and_nothing_stays() -> None:
    with (
        pytest.raises(ValueError, match="larger than"),
        RankProcess(spec(model="x" * 40_000), python("pass")),
    ):
        pytest.fail("it started")
