"""Every command on the page about Redis works on a Redis that holds a keyspace."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from pdcore.config import StoreAccess
from pdcore.registry.redis.driver import RedisStore
from pdcore.registry.store import Put
from tests.registry.test_redis_access import RIGHTS
from tests.support.redis_server import redis_server

PAGE: Final = Path(__file__).parents[2] / "docs" / "operating-redis.md"
COMMANDS: Final = re.findall(r"`redis-cli ([^`]+)`", PAGE.read_text(encoding="utf-8"))
KEY: Final = "/pdcore/default/view/instances/ID"


@pytest.mark.unit
def test_the_page_names_the_rights_that_are_tested() -> None:
    assert " ".join(RIGHTS) in PAGE.read_text(encoding="utf-8")


@pytest.mark.integration
async def test_its_commands_answer() -> None:
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("no redis-cli program on PATH (Debian: apt-get install redis-tools)")
    with redis_server() as server:
        async with RedisStore(StoreAccess(url=server.url, timeout_s=10)) as store:
            lease = await store.grant(60)
            await store.commit((), (Put(KEY, b'{"v": 1}', lease),))
        answers = [_answer(program, server.port, command) for command in COMMANDS]
    entry, names, changes, standing, leases = answers
    assert entry == f'2 2 {lease} {{"v": 1}}'
    assert names == KEY
    assert f"+{KEY}" in changes
    assert "revision\n2" in standing
    assert leases.splitlines()[0] == str(lease)


def _answer(program: str, port: int, command: str) -> str:
    arguments = [program, "-p", str(port), *shlex.split(command)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
