from __future__ import annotations

import pytest

from pdcore.errors import ConfigError
from pdcore.http_server import listen, port_of, url_of

pytestmark = pytest.mark.unit


def test_port_zero_picks_a_free_port() -> None:
    with listen("127.0.0.1", 0, "port") as listener:
        assert url_of("127.0.0.1", listener) == f"http://127.0.0.1:{port_of(listener)}"


def test_an_ipv6_host_is_bracketed_in_urls() -> None:
    with listen("::1", 0, "port") as listener:
        assert url_of("::1", listener) == f"http://[::1]:{port_of(listener)}"


def test_a_taken_port_is_named_by_flag_and_variable() -> None:
    with listen("127.0.0.1", 0, "bootstrap_port") as first:
        with pytest.raises(ConfigError) as taken:
            listen("127.0.0.1", port_of(first), "bootstrap_port")
    assert "--bootstrap-port / PDCORE_BOOTSTRAP_PORT" in str(taken.value)


@pytest.mark.parametrize("host", ["", "0", "::", "0.0.0.0", "::0", "0x0"])
def test_an_address_that_nobody_can_be_sent_to_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--host / PDCORE_HOST"):
        listen(host, 0, "port")


def test_a_host_that_is_no_address_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-host"):
        listen("no-such-host.invalid", 0, "port")
