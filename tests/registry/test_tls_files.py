"""PEM files that cannot work are known before anybody connects, by flag and by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pdcore.config import StoreAccess
from pdcore.errors import ConfigError
from pdcore.registry.tls_files import read_tls_files
from tests.support.certificates import Authority, openssl

pytestmark = pytest.mark.unit

CA = "--store-ca / PDCORE_STORE_CA: "
CERT = "--store-cert / PDCORE_STORE_CERT: "
KEY = "--store-key / PDCORE_STORE_KEY: "


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> StoreAccess:
    own = authority.issue("client")
    return StoreAccess(
        url="etcd://a", timeout_s=1, ca=str(authority.ca), cert=str(own.cert), key=str(own.key)
    )


def refusal(access: StoreAccess) -> str:
    with pytest.raises(ConfigError) as refused:
        read_tls_files(access, "store")
    (problem,) = refused.value.problems
    assert "\n" not in problem
    return problem


def test_good_files_are_read_whole(good: StoreAccess) -> None:
    files = read_tls_files(good, "store")
    assert files is not None
    assert good.ca is not None
    assert files.ca == Path(good.ca).read_bytes()
    assert files.cert is not None
    assert files.key is not None
    assert "PRIVATE" in files.key.decode()
    assert "PRIVATE" not in repr(files)
    trusting = read_tls_files(replace(good, cert=None, key=None), "store")
    assert trusting is not None
    assert (trusting.cert, trusting.key) == (None, None)
    assert read_tls_files(replace(good, ca=None, cert=None, key=None), "store") is None


def test_half_a_login_is_refused(good: StoreAccess) -> None:
    assert refusal(replace(good, key=None)).startswith(CERT + f"{good.cert} is of no use without its key")
    assert refusal(replace(good, cert=None)).startswith(KEY + f"{good.key} is of no use without its cert")
    assert refusal(replace(good, ca=None)).startswith(CERT + f"{good.cert} is of no use without TLS")


def test_a_file_that_cannot_be_read_is_named_with_its_flag(good: StoreAccess, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.pem")
    assert refusal(replace(good, ca=gone)) == CA + f"cannot read {gone}: No such file or directory"
    assert refusal(replace(good, cert=gone)) == CERT + f"cannot read {gone}: No such file or directory"
    assert refusal(replace(good, key=str(tmp_path))) == KEY + f"cannot read {tmp_path}: Is a directory"


def test_a_file_that_holds_something_else_is_named_with_its_flag(good: StoreAccess, tmp_path: Path) -> None:
    for content in (b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        other = tmp_path / "other.pem"
        other.write_bytes(content)
        assert refusal(replace(good, ca=str(other))) == CA + f"{other} holds no certificate in PEM form"
        assert refusal(replace(good, cert=str(other))) == CERT + f"{other} holds no certificate in PEM form"
        assert refusal(replace(good, key=str(other))).startswith(KEY + f"{other} holds no key")


def test_a_key_of_another_certificate_is_refused(good: StoreAccess, authority: Authority) -> None:
    stranger = authority.issue("stranger")
    assert (
        refusal(replace(good, key=str(stranger.key))) == KEY + f"{stranger.key} is not the key of {good.cert}"
    )


def test_a_key_under_a_passphrase_asks_no_terminal(good: StoreAccess, tmp_path: Path) -> None:
    sealed = tmp_path / "sealed.key"
    assert good.key is not None
    openssl("ec", "-in", good.key, "-aes256", "-passout", "pass:secret", "-out", str(sealed))
    assert (
        refusal(replace(good, key=str(sealed)))
        == KEY + f"{sealed} holds no key in PEM form without a passphrase"
    )
