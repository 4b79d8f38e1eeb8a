"""The secrets of a process: read together, refused together, renewed one by one."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from pdcore.errors import ConfigError
from pdcore.router.credentials import read_credentials
from tests.router.fleet import config
from tests.router.test_api_keys import KEY, line
from tests.support.certificates import Authority, openssl

pytestmark = pytest.mark.unit


def served(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """Whose certificate a client is shown, without a socket between them."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asks, answers, asks, answers):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = asks.getpeercert()
    assert found is not None
    subject: Any = found["subject"]
    return str(dict(field[0] for field in subject)["commonName"])


def test_nothing_named_is_nothing_asked() -> None:
    read = read_credentials(config())
    assert (read.tls, read.files, read.access.keys(), read.access.apart) == (None, (), None, False)
    assert read_credentials(config(admin_port=0)).access.apart


def test_everything_that_is_wrong_is_told_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        read_credentials(config(api_keys_file=tmp_path / "k", admin_token_file=tmp_path / "a"))
    flags = [problem.partition(" ")[0] for problem in wrong.value.problems]
    assert flags == ["--api-keys-file", "--admin-token-file"]


def test_engines_are_known_by_the_authorities_in_a_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trust = read_credentials(config(engine_ca=authority.ca)).engine_tls
    assert trust is not None
    issued = authority.issue("engine")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(issued.cert, issued.key)
    assert served(trust, server) == "engine"
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no certificate")
    for path, why in ((nothing, "holds no certificate"), (tmp_path / "nowhere", "No such file")):
        with pytest.raises(ConfigError, match=f"--engine-ca / PDCORE_ENGINE_CA: .*{why}"):
            read_credentials(config(engine_ca=path))


def test_keys_count_as_soon_as_they_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line(KEY))
    read = read_credentials(config(api_keys_file=file))
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    assert read.access.client(headers) == "team-a"
    file.write_text(line(KEY, "team-a-again"))
    for one in read.files:
        one.refresh()
    assert read.access.client(headers) == "team-a-again"
    file.write_text(KEY)
    for one in read.files:
        one.refresh()
    assert (read.access.client(headers), read.unread()) == ("team-a-again", 1)


def test_a_renewed_certificate_is_shown_and_half_of_one_never(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("first"), authority.issue("second")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(first.cert.read_bytes())
    key.write_bytes(first.key.read_bytes())
    read = read_credentials(config(tls_cert=cert, tls_key=key))
    trust = ssl.create_default_context(cafile=authority.ca)
    assert read.tls is not None
    assert served(trust, read.tls) == "first"
    (files,) = read.files
    for file, shown, unread in ((key, "first", 1), (cert, "second", 0)):
        file.write_bytes((second.key if file is key else second.cert).read_bytes())
        files.refresh()
        assert (served(trust, read.tls), read.unread()) == (shown, unread)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(tmp_path: Path) -> None:
    made = Authority(tmp_path).issue("x")
    locked = tmp_path / "locked.pem"
    openssl("ec", "-in", str(made.key), "-aes128", "-passout", "pass:secret", "-out", str(locked))
    with pytest.raises(ConfigError, match=r"--tls-cert, --tls-key: .*encrypted"):
        read_credentials(config(tls_cert=made.cert, tls_key=locked))
    with pytest.raises(ConfigError, match="given together"):
        read_credentials(config(tls_cert=made.cert))
