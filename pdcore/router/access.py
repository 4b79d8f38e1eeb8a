"""Who may ask this router for what: clients by API keys, operators by a token or a port of their own. Pure.

Without any of them everybody who reaches the router may do everything, which is meant for loopback. A router that asks
its clients for keys shows its operators' views to nobody, unless it has been told how to know an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pdcore.bearer import Token, credentials
from pdcore.errors import ApiError
from pdcore.router.api_keys import ApiKeys
from pdcore.router.headers import RawHeaders


def _no_keys() -> ApiKeys | None:
    return None


def _no_token() -> Token | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What is asked of whom, each read anew for every request. ``apart``: operators have a port of their own."""

    keys: Callable[[], ApiKeys | None] = _no_keys
    admin_token: Callable[[], Token | None] = _no_token
    engine_token: Callable[[], Token | None] = _no_token
    apart: bool = False

    def client(self, headers: RawHeaders) -> str | None:
        """The name of the client's key, None where none is asked for; raises 401 without one, 403 with a wrong one."""
        keys = self.keys()
        if keys is None:
            return None
        who = keys.who(credentials(headers))
        if who is None:
            raise ApiError("forbidden", "the API key is not known here")
        return who

    def operator(self, headers: RawHeaders) -> None:
        """Raise 401 or 403 for whoever is no operator."""
        token = self.admin_token()
        if token is not None:
            if not token.is_sent(credentials(headers)):
                raise ApiError("forbidden", "this is not the operators' token")
        elif not self.apart and self.keys() is not None:
            raise ApiError("forbidden", "operators' views need --admin-port or --admin-token-file here")

    @property
    def knows_operators(self) -> bool:
        """Whether operators can be told from everybody else."""
        return self.apart or self.admin_token() is not None

    def towards_engines(self) -> dict[str, str]:
        """The headers by which engines know this router."""
        token = self.engine_token()
        return {} if token is None else token.headers()


OPEN: Final = Access()
