from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from pdcore.group.keyspace_text import shortened
from pdcore.group.launch.readiness import waiting_for
from pdcore.group.overview import document, instance_rows, table
from pdcore.topology.topology import Stored, Topology, build
from tests.group.small_fleet import fleet
from tests.support.fleet import complete, instance_record, stored

pytestmark = pytest.mark.unit


def topology(values: Mapping[str, bytes]) -> Topology:
    return build({key: Stored(value, 7) for key, value in values.items()}, 7)


def shown(values: Mapping[str, bytes], width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table(topology(values), cluster="c"))
    return out.getvalue()


def test_a_row_says_whether_an_instance_is_ready_and_why_not() -> None:
    prefill, decode = instance_rows(topology(fleet()))
    assert (prefill.instance_id, prefill.ready, prefill.ranks, prefill.why_not_ready) == ("p0", True, 1, ())
    assert (decode.instance_id, decode.ready, decode.ranks) == ("d0", False, 0)
    assert decode.why_not_ready == ("state is starting", "rank 0.0.0 is missing")


def test_the_table_shows_each_instance_and_router_on_a_line() -> None:
    lines = shown(fleet()).splitlines()
    assert "cluster c at revision 7" in lines[0]
    (prefill,) = [line for line in lines if line.split()[:1] == ["p0"]]
    assert prefill.split() == [
        *("p0", "prefill", "serving", "yes", "tiny", "http://127.0.0.1:8001", "prefill-", "1/1", "32768")
    ]
    (decode,) = [line for line in lines if line.split()[:1] == ["d0"]]
    assert "no: state is starting; rank 0.0.0 is missing" in decode
    assert any(line.split() == ["r0", "router", "http://127.0.0.1:8000"] for line in lines)


def test_the_table_tells_what_left_and_what_is_not_read() -> None:
    text = shown({**fleet(), "instances/broken[bold]": b"{"})
    assert "p9 is gone: died" in text
    assert "instances/broken[bold] is not read:" in text


def test_who_has_nobody_to_serve_with_is_named_once_for_all_of_a_kind() -> None:
    others = {
        key: entry.value
        for name in ("q0", "q1", "q2")
        for key, entry in stored(complete(name, instance_record("prefill", group="g"))).items()
    }
    text = shown({**fleet(), **others}, width=200)
    assert "p0 can pair" not in text  # with a decode that is starting
    assert "q0 (and 2 more) can pair with no decode; nearest is d0: group: prefill has" in text
    read = document(topology({**fleet(), **others}), store="s", cluster="c")["alone"]
    assert isinstance(read, dict)
    assert (set(read), read["q1"]["nearest"]) == ({"q0", "q1", "q2"}, "d0")


def test_an_empty_keyspace_says_so() -> None:
    assert "Nothing is registered here." in shown({})


def test_the_document_has_everything_and_is_json() -> None:
    read = json.loads(json.dumps(document(topology(fleet()), store="etcd://h:1", cluster="c")))
    assert (read["store"], read["cluster"], read["revision"]) == ("etcd://h:1", "c", 7)
    by_id = {instance["instance_id"]: instance for instance in read["instances"]}
    assert by_id["p0"]["bootstrap"] == "127.0.0.1:18800"
    assert by_id["d0"]["bootstrap"] is None
    assert by_id["d0"]["why_not_ready"] == ["state is starting", "rank 0.0.0 is missing"]
    assert read["routers"] == [{"router_id": "r0", "url": "http://127.0.0.1:8000", "version": "0.1.0"}]
    assert read["departures"] == {"p9": "died"}


def test_what_is_waited_for_is_named_with_its_reason() -> None:
    waiting = waiting_for(("p0", "d0", "d1"), "r0", topology(fleet()))
    assert waiting == ("d0 (state is starting; rank 0.0.0 is missing)", "d1 (starting)")
    assert waiting_for(("p0",), "r0", topology(fleet())) == ()
    assert waiting_for((), "r1", topology(fleet())) == ("r1 (starting)",)


def keyspace_listing(value: dict[str, Any]) -> str:
    return f"/pdcore/c/view/instances/p0\n{json.dumps(value, sort_keys=True)}\n"


def test_a_value_is_cut_to_the_width_with_what_tells_most_first() -> None:
    key, value = shortened(
        keyspace_listing({"compat": "x" * 500, "role": "prefill", "state": "serving"}), 100
    )
    assert key == "/pdcore/c/view/instances/p0"
    assert value.startswith('    {"role": "prefill", "state": "serving", "compat"')
    assert value.endswith("characters)")
    assert len(value) == 100


def test_a_short_value_and_one_that_is_no_record_stay_whole() -> None:
    assert list(shortened('/a\n"id"\n/b\n{\n', 80)) == ["/a", '    "id"', "/b", "    {"]
