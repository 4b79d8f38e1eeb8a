"""Every code that the rules can give is in the published list, and the list has no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pdcore.group
from pdcore.group.validation.rules import CODES

pytestmark = pytest.mark.unit

_GIVEN = re.compile(r'\bcode(?:: str)? ?= ?"([a-z0-9_]+)"|"((?:pairing|cache|router)_[a-z_]+)"')
_WORD = re.compile(r'"([a-z0-9_]+)"')


def test_the_list_of_codes_is_complete() -> None:
    package = Path(pdcore.group.__file__).parent
    sources = [
        *sorted((package / "validation").glob("*.py")),
        package / "finding.py",
        package / "kinds.py",
        package / "spec.py",
        package / "modes" / "shared_cache.py",
    ]
    texts = [source.read_text(encoding="utf-8") for source in sources if source.name != "rules.py"]
    given = {code for text in texts for found in _GIVEN.finditer(text) for code in found.groups() if code}
    words = {word for text in texts for word in _WORD.findall(text)}
    assert given - CODES.keys() == set()
    assert CODES.keys() - words == set()


def test_the_page_explains_every_code_with_its_rule() -> None:
    page = (Path(pdcore.group.__file__).parents[2] / "docs" / "group-spec.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| ([^|]*)\| \S", page, re.MULTILINE)
    assert {code: rule.strip() for code, rule in rows} == CODES
    assert len(rows) == len(CODES)
