"""Who is let in with what: every combination of what a router asks for and what somebody sends."""

from __future__ import annotations

import pytest

from pdcore.bearer import Token
from pdcore.errors import ApiError
from pdcore.router.access import OPEN, Access
from pdcore.router.api_keys import ApiKeys
from tests.router.test_api_keys import KEY, line

pytestmark = pytest.mark.unit

ADMIN = "operators-0123456789"
KEYS = ApiKeys.read(line(KEY))
TOKEN = Token.read(ADMIN)
ASKS = Access(keys=lambda: KEYS, admin_token=lambda: TOKEN, engine_token=lambda: TOKEN)


def sent(value: str, scheme: str = "Bearer") -> list[tuple[bytes, bytes]]:
    return [(b"host", b"h"), (b"authorization", f"{scheme} {value}".encode())]


def test_without_settings_everybody_may_do_everything_and_engines_are_told_nothing() -> None:
    assert OPEN.client([]) is None
    OPEN.operator([])
    assert OPEN.towards_engines() == {}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_known_key_has_a_name(scheme: str) -> None:
    assert ASKS.client(sent(KEY, scheme)) == "team-a"


@pytest.mark.parametrize(
    "headers",
    [[], sent(KEY, "Basic"), sent(KEY) * 2, [(b"authorization", KEY.encode())], [(b"x-api-key", b"x")]],
)
def test_no_key_is_401_for_clients_and_operators(headers: list[tuple[bytes, bytes]]) -> None:
    for ask in (ASKS.client, ASKS.operator):
        with pytest.raises(ApiError) as caught:
            ask(headers)
        assert caught.value.status == 401
        assert caught.value.headers() == {"www-authenticate": "Bearer"}


@pytest.mark.parametrize("value", ["", "wrong", KEY + "x", KEY[:-1], ADMIN])
def test_a_wrong_key_is_403_and_not_repeated(value: str) -> None:
    with pytest.raises(ApiError) as caught:
        ASKS.client(sent(value))
    assert caught.value.status == 403
    assert not value or value not in caught.value.message


def test_operators_have_their_own_token_which_is_no_key_and_the_other_way_round() -> None:
    ASKS.operator(sent(ADMIN))
    with pytest.raises(ApiError, match="not the operators' token"):
        ASKS.operator(sent(KEY))


def test_a_router_that_asks_for_keys_shows_its_views_to_nobody_without_a_port_or_a_token() -> None:
    with pytest.raises(ApiError) as caught:
        Access(keys=lambda: KEYS).operator(sent(KEY))
    assert caught.value.status == 403
    Access(keys=lambda: KEYS, apart=True).operator([])


def test_engines_are_sent_the_token() -> None:
    assert ASKS.towards_engines() == {"authorization": f"Bearer {ADMIN}"}
