"""The keyspace's reference page says what the code does, and its commands answer an operator's questions."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import pytest

from pdcore.registry.claims import PID_STARTED
from pdcore.topology import codec, keys
from pdcore.topology.codec import Rejected
from pdcore.topology.keys import RankId, RankPosition
from pdcore.topology.orders import DRAINED
from pdcore.topology.records import (
    Compat,
    DepartureRecord,
    DesiredRecord,
    InstanceRecord,
    OrderRecord,
    RankRecord,
    Record,
    RouterRecord,
)
from tests.support.cluster import Engine, Router
from tests.support.etcd_server import etcd_server
from tests.support.fleet import instance_record, order_record, rank_record
from tests.support.leaders import Leaders
from tests.support.pages import DOCS, fenced, fields, sections
from tests.support.tiny_models import write_tiny_llama

PAGE: Final = (DOCS / "keyspace.md").read_text(encoding="utf-8")
SECTIONS: Final = sections(PAGE)
QUESTIONS: Final = {heading: body for heading, body in SECTIONS.items() if re.match(r"\d+\. ", heading)}
RECORDS: Final[dict[str, type[Any]]] = {
    "`instances/{instance_id}`": InstanceRecord,
    "`compat`": Compat,
    "`ranks/{instance_id}/{dp}.{cp}.{tp}`": RankRecord,
    "`departures/{instance_id}`": DepartureRecord,
    "`routers/{router_id}`": RouterRecord,
    "`orders/{instance_id}`": OrderRecord,
    "`groups/{group}/desired`": DesiredRecord,
}
VIEW: Final = "/pdcore/default/view/"
SERVING, INCOMPLETE = "unified-1", "decode-1"
WATCHING_S: Final = "1"

EXPECTED: Final = {
    "1": ((f"{VIEW}instances/{SERVING}\n", '"state": "serving"', f"{VIEW}ranks/{SERVING}/0.0.0"), INCOMPLETE + '"'),
    "2": (('"state": "starting"', '"reason": "silent"'), SERVING),
    "3": (('"dp_size": 2', '"tp_size": 1', f"ranks/{INCOMPLETE}/0.0.0"), "1.0.0"),
    "4": (("PUT\n", f"{VIEW}instances/{SERVING}\n", '"state": "starting"', '"state": "serving"'), "compacted"),
    "5": ((f"{VIEW}departures/{INCOMPLETE}\n", '"reason": "silent"', "PUT\n"), "instances/"),
    "6": (('"admin_url": "http://127.0.0.1:', '"revision":'), "instances/"),
    "7": (("{incarnation}\n",), "{"),
    "8": ((f"{VIEW}orders/{INCOMPLETE}\n", '"kind": "drain"'), SERVING),
    "9": (('"', '"revision":'), "view"),
    "10": (("granted with TTL(5s)", f"{VIEW}instances/{SERVING}", f"{VIEW}ranks/{SERVING}/0.0.0"), "claims/"),
}  # fmt: skip
"""By question: what its commands must print, and what they must not."""


@pytest.mark.unit
@pytest.mark.parametrize("heading", RECORDS)
def test_a_table_lists_the_fields_of_its_record_and_no_other(heading: str) -> None:
    known = get_type_hints(RECORDS[heading]).keys() - {"extra"}
    assert fields(SECTIONS[heading]).keys() == known


@pytest.mark.unit
@pytest.mark.parametrize("heading", RECORDS)
def test_a_row_lists_the_choices_of_its_field(heading: str) -> None:
    rows = fields(SECTIONS[heading])
    for name, hint in get_type_hints(RECORDS[heading]).items():
        if get_origin(hint) is Literal:
            assert all(f"`{choice}`" in rows[name] for choice in get_args(hint)), name
        elif type(None) in get_args(hint):
            assert "null" in rows[name], name


@pytest.mark.unit
def test_every_family_of_keys_has_a_section() -> None:
    families = {name.split("/")[0].strip("`") for name in SECTIONS if name.startswith("`")}
    assert {"store_id", "instances", "ranks", "departures", "routers", "orders", "groups"} <= families
    assert all(f"`{field}`" in SECTIONS["`instances/{instance_id}`"] for field in (PID_STARTED, DRAINED))


@pytest.mark.unit
def test_links_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target, _, anchor in (
            link.partition("#") for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text())
        ):
            text = (DOCS / target).read_text(encoding="utf-8")
            anchors = {
                re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in sections(text)
            }
            assert not anchor or anchor in anchors, f"{page.name}: {target}#{anchor}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A real instance and a router, and a decode instance that lacks a rank and is ordered to drain."""

    leaders: Leaders
    engine: Engine
    router: Router

    def run(self, commands: str) -> str:
        """What the page's commands print, here."""
        script = commands.replace("http://127.0.0.1:8000", self.router.url).replace(
            "timeout 2", f"timeout {WATCHING_S}"
        )
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": self.leaders.etcd.endpoint},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode in (0, 124), done.stderr  # 124: a watch that was ended
        return done.stdout


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("page") / "default"
    directory.mkdir()
    with etcd_server() as etcd:
        leaders = Leaders(etcd, directory, write_tiny_llama(directory / "tiny"))
        with leaders.cluster as cluster:
            engine, router = leaders.start("unified", "--instance-id", SERVING), cluster.router()
            for key, record in incomplete().items():
                put(etcd.endpoint, key, record)
            yield Fleet(leaders, engine.wait_ready(), router.wait_ready())
            leaders.close()


def incomplete() -> dict[str, Record]:
    return {
        keys.instance(INCOMPLETE): instance_record("decode", dp_size=2, state="starting"),
        keys.rank(RankId(INCOMPLETE, RankPosition(0, 0, 0))): rank_record(),
        keys.departure(INCOMPLETE): DepartureRecord(incarnation="inc-1", reason="silent", by="test"),
        keys.order(INCOMPLETE): order_record("drain"),
    }


def put(endpoint: str, key: str, record: Record) -> None:
    value = codec.encode(record)
    assert not isinstance(codec.decode(key, value), Rejected)
    subprocess.run(
        ["etcdctl", "--endpoints", endpoint, "put", VIEW + key, value.decode()],
        env={**os.environ, "ETCDCTL_API": "3"},
        capture_output=True,
        timeout=10,
        check=True,
    )


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_by_its_commands(fleet: Fleet, question: str) -> None:
    printed = "".join(fleet.run(block) for block in fenced(QUESTIONS[question], "sh"))
    expected, absent = EXPECTED[question.partition(".")[0]]
    for text in expected:
        assert text.replace("{incarnation}", fleet.engine.incarnation) in printed, printed
    assert absent not in printed, printed


@pytest.mark.unit
def test_there_are_ten_questions() -> None:
    assert [heading.partition(".")[0] for heading in QUESTIONS] == list(EXPECTED)


@pytest.mark.unit
def test_the_page_is_where_the_readme_says() -> None:
    readme = (Path(DOCS).parent / "README.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert f"(docs/{page.name})" in readme
