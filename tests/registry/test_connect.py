"""What ``--store`` may say."""

from __future__ import annotations

import pytest

from pdcore.config import StoreAccess
from pdcore.errors import ConfigError
from pdcore.registry.connect import etcd_addresses, open_store

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("etcd://127.0.0.1:2379", ("127.0.0.1:2379",)),
        ("etcd://a:1,b:2,c:3/", ("a:1", "b:2", "c:3")),
        ("etcd://etcd.local", ("etcd.local:2379",)),
        ("etcd://[::1]:4001,[fe80::1]", ("[::1]:4001", "[fe80::1]:2379")),
    ],
)
def test_every_member_of_a_url_is_an_address(url: str, addresses: tuple[str, ...]) -> None:
    assert etcd_addresses(url) == addresses


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:2379",
        "http://127.0.0.1:2379",
        "redis://127.0.0.1",
        "ETCD://a:1",
        "etcd://",
        "etcd://a:1,,b:2",
        "etcd://a:0",
        "etcd://a:65536",
        "etcd://a:-1",
        "etcd://a:x",
        "etcd://a:",
        "etcd://:2379",
        "etcd://[::1",
        "etcd://[::1]4001",
        "etcd://::1:4001",
        "etcd://a:1/path",
        "etcd://a b:1",
    ],
)
def test_a_url_that_cannot_work_is_one_sentence_naming_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^--store / PDCORE_STORE: ") as refused:
        open_store(StoreAccess(url=url, timeout_s=1))
    assert len(refused.value.problems) == 1
    assert "\n" not in str(refused.value)


def test_credentials_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="not supported") as refused:
        open_store(StoreAccess(url="etcd://root:hunter2@a:1", timeout_s=1))
    assert "hunter2" not in str(refused.value)


def test_opening_connects_to_nothing() -> None:
    assert repr(open_store(StoreAccess(url="etcd://a:1", timeout_s=1))) == "<EtcdStore a:1 now a:1>"
