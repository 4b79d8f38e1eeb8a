"""What ``--store`` may say."""

from __future__ import annotations

import pytest

from pdcore.config import StoreAccess
from pdcore.errors import ConfigError
from pdcore.registry.connect import etcd_addresses, open_store
from pdcore.registry.etcd.identity import Identity

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


@pytest.mark.parametrize("url", ["etcd://root:hunter2@a:1", "root:hunter2@a:1", "hunter2"])
def test_credentials_in_the_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(StoreAccess(url=url, timeout_s=1))
    assert "hunter2" not in str(refused.value)


def test_credentials_in_the_url_are_told_where_they_belong() -> None:
    with pytest.raises(ConfigError, match="use --store-user and PDCORE_STORE_PASSWORD"):
        open_store(StoreAccess(url="etcd://root:hunter2@a:1", timeout_s=1))


def test_half_a_login_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^--store-user / PDCORE_STORE_USER: me needs PDCORE_STORE_PASSWORD$"
    ):
        open_store(StoreAccess(url="etcd://a:1", timeout_s=1, user="me"))
    with pytest.raises(ConfigError, match=r"^PDCORE_STORE_PASSWORD is of no use without") as refused:
        open_store(StoreAccess(url="etcd://a:1", timeout_s=1, password="hunter2"))
    assert "hunter2" not in str(refused.value)


def test_a_password_is_shown_nowhere() -> None:
    access = StoreAccess(url="etcd://a:1", timeout_s=1, user="me", password="hunter2")
    for shown in (access, open_store(access), Identity(user="me", password="hunter2")):
        assert "hunter2" not in repr(shown)


def test_a_certificate_that_is_not_there_is_known_before_connecting() -> None:
    with pytest.raises(ConfigError, match=r"^--store-ca / PDCORE_STORE_CA: cannot read /nowhere: "):
        open_store(StoreAccess(url="etcd://a:1", timeout_s=1, ca="/nowhere"))


def test_opening_connects_to_nothing() -> None:
    assert repr(open_store(StoreAccess(url="etcd://a:1", timeout_s=1))) == "<EtcdStore a:1 now a:1>"
    assert repr(open_store(StoreAccess(url="redis://a", timeout_s=1))) == "<RedisStore a:6379>"
