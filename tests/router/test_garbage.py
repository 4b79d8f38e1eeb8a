"""What a request leaves behind is freed at once, not by whoever looks for cycles: those are looked for seldom."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.router.fleet import running_fleet
from tests.support import fake_engines as fake
from tests.support.fake_engines import COMPLETION, DONE, MARK, FakeEngine, Script, event

pytestmark = pytest.mark.integration

WHOLE: Script = fake.answer(200, COMPLETION, MARK)
STREAM: Script = fake.stream(event("a"), event("b", "stop"), DONE)


@pytest.fixture
def kept() -> Iterator[None]:
    """Whatever a collection finds is kept in ``gc.garbage``."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_served_request_leaves_no_cycle(stream: bool, kept: None) -> None:
    async with (
        running_fleet() as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine([STREAM if stream else WHOLE]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        for _ in range(3):  # connections, caches
            assert (await fleet.post({"prompt": "hi", "stream": stream})).status_code == 200
        gc.collect()
        gc.garbage.clear()
        for _ in range(5):
            assert (await fleet.post({"prompt": "hi", "stream": stream})).status_code == 200
        gc.collect()
        left = Counter(
            type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("pdcore.router")
        )
        assert not left
