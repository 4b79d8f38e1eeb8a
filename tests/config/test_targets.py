"""Engines on a command line: every spelling, and each refusal with what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.config.targets import Target, TargetRole, target, targets

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("role", "word", "url", "bootstrap"),
    [
        ("prefill", "http://h:9", "http://h:9", None),
        ("prefill", "http://h:9/,bootstrap=8998", "http://h:9", 8998),
        ("prefill", "10.0.0.1", "http://10.0.0.1:8001", None),
        ("decode", "p0.example", "http://p0.example:8100", None),
        ("decode", "h:9", "http://h:9", None),
        ("unified", "h", "http://h:8200", None),
        ("decode", "fd00::1", "http://[fd00::1]:8100", None),
        ("decode", "[fd00::1]:9", "http://[fd00::1]:9", None),
        ("decode", "http://[fd00::1]:9", "http://[fd00::1]:9", None),
        ("decode", "https://h:9", "https://h:9", None),
        ("prefill", "https://h,bootstrap=8998", "https://h:8001", 8998),
    ],
)
def test_every_spelling(role: TargetRole, word: str, url: str, bootstrap: int | None) -> None:
    made = target(role, word)
    assert (made.url, made.bootstrap_port) == (url, bootstrap)


def test_its_id_is_what_an_instance_has_that_was_given_none() -> None:
    assert target("prefill", "http://10.0.0.1:9").instance_id == "prefill-10.0.0.1-9"
    assert target("decode", "[fd00::1]:9").instance_id == "decode-fd00::1-9"


def test_several_by_blanks_and_a_number_behind_a_prefill_is_its_bootstrap_port() -> None:
    found = targets("prefill")("http://a:1 8998 b:2 c,bootstrap=7")
    assert found == (
        Target(role="prefill", host="a", port=1, bootstrap_port=8998),
        Target(role="prefill", host="b", port=2),
        Target(role="prefill", host="c", port=8001, bootstrap_port=7),
    )


@pytest.mark.parametrize(
    ("role", "words", "why"),
    [
        ("prefill", "", "names no engine"),
        ("decode", "a:1 http://a:1", "a-1 is named twice"),
        ("decode", "ftp://a:1", "must be HOST[:PORT] or http[s]://HOST[:PORT]"),
        ("decode", "https://u:p@a:1", "and nothing more"),
        ("decode", "http://a:1 https://a:1", "a-1 is named twice"),
        ("decode", "http://u:p@a:1", "and nothing more"),
        ("decode", "http://a:1/v1", "and nothing more"),
        ("decode", "http://a:1?x", "and nothing more"),
        ("decode", "http://", "and nothing more"),
        ("decode", "a:0", "the port must be from 1 to 65535"),
        ("decode", "a:99999", "is no address"),
        ("decode", "a:x", "is no address"),
        ("decode", "a_/b", "and nothing more"),
        ("decode", "-a", "neither an IP address nor a host name"),
        ("decode", "0.0.0.0", "nobody can be reached at 0.0.0.0"),
        ("decode", "a,bootstrap=1", "only nothing may follow the address"),
        ("decode", "a 8998", "neither an IP address nor a host name"),
        ("prefill", "a,bootstrap=0", "'0' is no port"),
        ("prefill", "a,bootstrap=x", "'x' is no port"),
        ("prefill", "a,other=1", "only bootstrap=PORT may follow the address"),
        ("prefill", "a 99999", "'99999' is no port"),
    ],
)
def test_each_refusal(role: TargetRole, words: str, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        targets(role)(words)
    assert why in str(refused.value)


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_anything_else_is_refused_or_can_be_asked(word: str) -> None:
    try:
        made = target("prefill", word)
    except ValueError:
        return
    assert target("prefill", made.url).url == made.url
    assert made.url.startswith(("http://", "https://"))
    assert " " not in made.url
