"""Keys, tokens and certificates over real sockets: who is let in, what an engine is told, what the log never holds."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from openai import AsyncOpenAI, AuthenticationError, PermissionDeniedError

from pdcore.bearer import Token
from pdcore.config.targets import Target
from pdcore.http_server import answering, listen, url_of
from pdcore.registry.ring import Ring
from pdcore.router.access import Access
from pdcore.router.api_keys import ApiKeys
from pdcore.router.app import build_operators_app
from pdcore.router.command import main
from tests.router.fleet import MODEL, Fleet, running_fleet
from tests.router.test_api_keys import KEY, line
from tests.router.test_process import Process, register
from tests.support import fake_engines as fake
from tests.support.certificates import Authority
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, MARK, FakeEngine, Script

pytestmark = pytest.mark.integration

ADMIN = "operators-0123456789"
ENGINE = "engines-0123456789abc"
KEYS, TOKEN = ApiKeys.read(line(KEY)), Token.read(ADMIN)
NOTHING: dict[str, str] = {}
BEARER = {"authorization": f"Bearer {KEY}"}
OPERATOR = {"authorization": f"Bearer {ADMIN}"}
GOOD: Script = fake.answer(200, COMPLETION, MARK)
VIEWS = ("/metrics", "/stats", "/pdcore/topology", "/pdcore/revision", "/pdcore/history")
BODY = {"prompt": "hi"}


@asynccontextmanager
async def pair(access: Access) -> AsyncIterator[tuple[Fleet, FakeEngine]]:
    async with (
        running_fleet(access=access) as fleet,
        FakeEngine([fake.accepted()]) as p,
        FakeEngine([GOOD]) as d,
    ):
        await fleet.add("p", "prefill", p)
        await fleet.add("d", "decode", d)
        yield fleet, d


async def test_without_a_key_nothing_is_served_or_shown_and_no_engine_hears_of_it() -> None:
    async with pair(Access(keys=lambda: KEYS, admin_token=lambda: TOKEN)) as (fleet, d):
        cases: list[tuple[dict[str, str], int, str]] = [
            (NOTHING, 401, "unauthorized"),
            ({"authorization": "Bearer wrong"}, 403, "forbidden"),
            (OPERATOR, 403, "forbidden"),
        ]
        for headers, status, code in cases:
            for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"):
                answer = await fleet.post(b"not even JSON", path, {**headers, "x-request-id": "me"})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"], error["request_id"]) == (status, code, "me")
                assert ("www-authenticate" in answer.headers) is (status == 401)
            assert (await fleet.client.get("/v1/models", headers=headers)).status_code == status
        assert not d.seen
        assert (await fleet.post(BODY, headers=BEARER)).status_code == 200
        assert (await fleet.client.get("/v1/models", headers=BEARER)).status_code == 200
        assert {(await fleet.client.get(path)).status_code for path in ("/health", "/ready")} == {200}
        metrics = (await fleet.client.get("/metrics", headers=OPERATOR)).text
        assert 'pdcore_router_refused_total{code="unauthorized"} 1.0' in metrics
        assert 'pdcore_router_requests_total{endpoint="chat",outcome="forbidden"} 2.0' in metrics


async def test_operators_views_need_the_operators_token_and_no_clients_key() -> None:
    async with pair(Access(keys=lambda: KEYS, admin_token=lambda: TOKEN)) as (fleet, _):
        for path in VIEWS:
            answers = [
                (await fleet.client.get(path, headers=headers)).status_code
                for headers in (NOTHING, BEARER, OPERATOR)
            ]
            assert answers == [401, 403, 400 if path == "/pdcore/history" else 200]
    async with pair(Access(keys=lambda: KEYS)) as (fleet, _):
        for path in VIEWS:
            refused = await fleet.client.get(path, headers=BEARER)
            assert refused.status_code == 403
            assert "--admin-port" in refused.json()["error"]["message"]


async def test_at_a_port_of_their_own_operators_meet_the_views_and_clients_do_not() -> None:
    async with pair(Access(keys=lambda: KEYS, apart=True)) as (fleet, _):
        app = build_operators_app(
            router_id="r", serving=fleet.serving, lifecycle=fleet.lifecycle, ring=Ring()
        )
        with listen("127.0.0.1", 0, "admin_port") as listener:
            async with (
                answering(app, listener),
                httpx.AsyncClient(base_url=url_of("127.0.0.1", listener), trust_env=False) as operators,
            ):
                for path in (*VIEWS, "/health", "/ready"):
                    expected = 400 if path == "/pdcore/history" else 200
                    assert (await operators.get(path)).status_code == expected
                assert (await operators.post("/v1/completions", json=BODY)).status_code == 404
                for path in VIEWS:
                    assert (await fleet.client.get(path, headers=BEARER)).status_code == 404
                stats = (await operators.get("/stats")).json()
    assert (stats["status"], stats["prefill_backends"], stats["decode_backends"]) == ("running", 1, 1)


async def test_engines_are_sent_the_routers_token_and_never_the_clients_key() -> None:
    token = Token.read(ENGINE)
    async with pair(Access(keys=lambda: KEYS, engine_token=lambda: token)) as (fleet, d):
        assert (await fleet.post(BODY, headers=BEARER)).status_code == 200
        (seen,) = d.seen
        assert seen.headers["authorization"] == f"Bearer {ENGINE}"
        assert KEY not in str(seen)


class AsksForTheToken(FakeEngine):
    """An engine of which only the health is open."""

    def script(self) -> Script:
        if self.seen[-1].headers.get("authorization") != f"Bearer {ENGINE}":
            return fake.answer(401, {"error": "Unauthorized"})
        if self.seen[-1].path == "/v1/models":
            return fake.answer(200, {"object": "list", "data": [{"id": "guarded"}]})
        return super().script()


async def test_engines_at_fixed_addresses_are_asked_with_the_token_too() -> None:
    token = Token.read(ENGINE)
    async with AsksForTheToken([GOOD]) as engine:
        target = Target(role="unified", host="127.0.0.1", port=engine.port, bootstrap_port=None)
        async with running_fleet(unified=(target,), access=Access(engine_token=lambda: token)) as fleet:

            async def serves() -> bool:
                return (await fleet.post({**BODY, "model": "guarded"})).status_code == 200

            await eventually(serves, 5, "its model is known")
            assert (await fleet.post({**BODY, "model": "other"})).status_code == 404


async def test_the_openai_sdk_meets_its_own_errors() -> None:
    async with pair(Access(keys=lambda: KEYS)) as (fleet, _):
        url = fleet.url + "/v1"
        async with AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as sdk:
            with pytest.raises(PermissionDeniedError):
                await sdk.completions.create(model=MODEL, prompt="x")
            with pytest.raises(AuthenticationError):
                await sdk.models.list(extra_headers={"authorization": ""})
        async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as sdk:
            assert (await sdk.completions.create(model=MODEL, prompt="x")).choices[0].text == " Paris"


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


async def test_a_process_with_all_of_it_and_new_keys_and_certificates_while_it_runs(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("first"), authority.issue("second")
    files = {name: tmp_path / name for name in ("keys", "admin", "engine", "cert.pem", "key.pem")}
    files["keys"].write_text(line(KEY))
    files["admin"].write_text(ADMIN)
    files["engine"].write_text(ENGINE)
    files["cert.pem"].write_bytes(first.cert.read_bytes())
    files["key.pem"].write_bytes(first.key.read_bytes())
    flags = (
        *("--api-keys-file", str(files["keys"]), "--admin-token-file", str(files["admin"])),
        *("--engine-token-file", str(files["engine"]), "--admin-port", "0", "--log-format", "json"),
        *("--tls-cert", str(files["cert.pem"]), "--tls-key", str(files["key.pem"])),
    )
    async with FakeEngine([fake.accepted()]) as p, FakeEngine([GOOD]) as d:
        await register(etcd.url, p=p, d=d)
        with Process(tmp_path, etcd.url, *flags) as process:
            url = process.url.replace("http://", "https://")
            trust = ssl.create_default_context(cafile=authority.ca)
            async with httpx.AsyncClient(base_url=url, verify=trust, trust_env=False, timeout=5) as client:

                async def status(headers: dict[str, str]) -> int | None:
                    try:
                        return (await client.post("/v1/completions", json=BODY, headers=headers)).status_code
                    except httpx.TransportError:
                        return None

                async def serves(headers: dict[str, str]) -> bool:
                    return await status(headers) == 200

                await eventually(lambda: serves(BEARER), 20, "the key's owner is served")
                assert d.seen[-1].headers["authorization"] == f"Bearer {ENGINE}"
                assert await status(NOTHING) == 401
                assert await process.get("/health") is None, "no plain HTTP at this port"
                files["keys"].write_text("half a line")
                assert await serves(BEARER)
                files["keys"].write_text(line("another-key-0123456789", "team-b"))
                await eventually(
                    lambda: serves({"authorization": "Bearer another-key-0123456789"}), 5, "the new key"
                )
                assert await status(BEARER) == 403
            assert await _subject(url, trust) == "first"
            files["key.pem"].write_bytes(second.key.read_bytes())
            files["cert.pem"].write_bytes(second.cert.read_bytes())

            async def is_second() -> bool:
                return await _subject(url, trust) == "second"

            await eventually(is_second, 5, "the renewed certificate")
            log = process.output()
    lines = [json.loads(one) for one in log.splitlines()]
    assert "team-b" in {one.get("client") for one in lines if one["event"] == "request"}
    assert not any(secret in log for secret in (KEY, ADMIN, ENGINE, "another-key"))


async def _subject(url: str, trust: ssl.SSLContext) -> str:
    """The name in the certificate that a new connection is shown."""
    port = int(url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    try:
        certificate = writer.get_extra_info("peercert")
        return str(dict(field[0] for field in certificate["subject"])["commonName"])
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--tls-cert", "/nowhere"), "--tls-key"),
        (("--tls-cert", "/nowhere", "--tls-key", "/nowhere"), "--tls-cert, --tls-key: /nowhere"),
        (("--api-keys-file", "/nowhere"), "--api-keys-file / PDCORE_API_KEYS_FILE: /nowhere: No such file"),
        (
            ("--admin-token-file", "/dev/null"),
            "--admin-token-file / PDCORE_ADMIN_TOKEN_FILE: /dev/null: must",
        ),
        (("--admin-port", "x"), "--admin-port / PDCORE_ADMIN_PORT"),
    ],
)
def test_a_secret_that_cannot_be_read_is_one_line_and_exit_2(flags: tuple[str, ...], says: str) -> None:
    ended = CliRunner().invoke(main, ("--store", "etcd://127.0.0.1:1", "--port", "0", *flags))
    assert ended.exit_code == 2
    (line,) = ended.stderr.splitlines()
    assert says in line
