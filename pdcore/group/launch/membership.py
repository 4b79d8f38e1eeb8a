"""Keeps a router that follows no store told of the members that answer, through its list of engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import httpx

from pdcore import telemetry
from pdcore.clock import Clock

LOOK_S: Final = 1.0
ANSWER_S: Final = 5.0

log = telemetry.logger(__name__)


class Membership:
    """Run :meth:`keep` as a task. ``members`` says by URL which role each has that shall be known at ``url``."""

    def __init__(self, url: str, members: Callable[[], Mapping[str, str]], clock: Clock) -> None:
        self._url = url
        self._members = members
        self._clock = clock

    async def keep(self) -> None:
        """Until cancelled."""
        async with httpx.AsyncClient(base_url=self._url, trust_env=False, timeout=ANSWER_S) as client:
            while True:
                try:
                    await self.look(client)
                except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                    log.debug("the router was not told of its members", reason=str(error))
                await self._clock.sleep(LOOK_S)

    async def look(self, client: httpx.AsyncClient) -> None:
        """Add who is missing, then remove who is too many. Nobody is removed while that would leave a role empty."""
        listed = await client.get("/workers")
        listed.raise_for_status()
        known: dict[str, str] = {one["url"]: one["worker_type"] for one in listed.json()["workers"]}
        wanted = self._members()
        for url in wanted.keys() - known.keys():
            added = await client.post("/workers", json={"url": url, "worker_type": wanted[url]})
            added.raise_for_status()
        for url in known.keys() - wanted.keys():
            if known[url] in wanted.values():
                removed = await client.delete(f"/workers/{quote(url, safe='')}")
                removed.raise_for_status()
