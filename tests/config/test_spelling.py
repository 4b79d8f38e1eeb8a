"""Messages name a setting by the flag that was typed for it."""

from __future__ import annotations

import pytest

from pdcore.config import ENGINE
from pdcore.config.spelling import in_their_spelling, typed

pytestmark = pytest.mark.unit

OTHERS = {"--yaml-file-path": "config", "--engine-backend": "transfer_engine"}


@pytest.mark.parametrize(
    ("line", "problem", "told"),
    [
        ("--yaml_file_path=x", "--config / PDCORE_CONFIG: cannot read x", "--yaml_file_path: cannot read x"),
        ("--engine-backend x", "--transfer-engine x is none", "--engine-backend x is none"),
        (
            "--kv-transfer-ifname x",
            "--kv-ifname / PDCORE_KV_IFNAME: --kv-ifname-not x",
            "--kv-transfer-ifname: --kv-ifname-not x",
        ),
        ("--kv_tokens 7", "--kv-tokens / PDCORE_KV_TOKENS: 7", "--kv_tokens: 7"),
        ("--kv-tokens 7", "--kv-tokens / PDCORE_KV_TOKENS: 7", "--kv-tokens / PDCORE_KV_TOKENS: 7"),
        ("--dtype 7", "--kv-tokens / PDCORE_KV_TOKENS: 7", "--kv-tokens / PDCORE_KV_TOKENS: 7"),
        ("--config a --yaml-file-path b", "a contradicts --config b", "a contradicts --config b"),
        ("x --unknown", "--kv-tokens: 7", "--kv-tokens: 7"),
    ],
)
def test_a_setting_is_told_as_it_was_typed(line: str, problem: str, told: str) -> None:
    assert in_their_spelling(problem, typed(line.split(), ENGINE, OTHERS)) == told
