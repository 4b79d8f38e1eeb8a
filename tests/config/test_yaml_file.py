from __future__ import annotations

from pathlib import Path

import pytest

from pdcore.config.yaml_file import MAX_BYTES, MAX_DEPTH, parse_yaml, read_yaml
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as wrong:
        parse_yaml(text, "f.yaml")
    (only,) = wrong.value.problems
    return only


def test_a_plain_document_is_what_it_says() -> None:
    text = "a:\n  b: 128\n  c: True\nd: [1, 2]\ne:\n"
    assert parse_yaml(text, "f") == {"a": {"b": 128, "c": True}, "d": [1, 2], "e": None}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "f.yaml: line 1, column 2: while parsing a flow node"),
        ("a:\n\tb: 1", "f.yaml: line 2, column 1: "),
        ("a: 1\n---\nb: 1", "line 2, column 1: expected a single document"),
        ("a: *x", "line 1, column 4: aliases (*x) are not allowed"),
        ("a: &x [1]\nb: [*x, *x]", "line 2, column 5: aliases (*x)"),
        ("a:\n  b: 1\n  b: 2", "line 3, column 3: the key 'b' stands there twice"),
        ("- {a: 1, a: 2}", "the key 'a' stands there twice"),
        ("? [1]\n: 2", "unhashable key"),
        ("a: " + "[" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH}"),
        ("a: " + "[" * (MAX_BYTES // 2), f"nested deeper than {MAX_DEPTH}"),
        ("a: 2026-13-01", "month"),
        ("a: " + "9" * 5000, "digits"),
        ("a: \x07", "special characters are not allowed"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
)
def test_what_is_no_plain_document_is_one_line_with_its_place(text: str, says: str) -> None:
    said = problem(text)
    assert says in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a: " + b"x" * MAX_BYTES, f"longer than {MAX_BYTES} bytes"),
        (b"a: \xff", "is not UTF-8: invalid start byte at byte 3"),
    ],
)
def test_a_file_that_cannot_be_text_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as wrong:
        read_yaml(file)
    assert wrong.value.problems == (f"{file}: {says}",)


def test_a_file_that_is_not_there_is_named_with_its_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config / PDCORE_CONFIG: cannot read .*No such file"):
        read_yaml(tmp_path / "prefill.yaml")
