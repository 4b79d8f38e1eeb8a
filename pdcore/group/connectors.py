"""The value of vLLM's ``--kv-transfer-config``: which connector a role really runs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from pdcore.group.flags import KV_TRANSFER_CONFIG, Flags
from pdcore.topology.records import Json

_BARE_PLACEHOLDER: Final = re.compile(r"(?<=[:,\[\s])\{\{[\w.-]+\}\}(?=[\s,\]}])")


class BadConnector(ValueError):
    """The value is no JSON object; the sentence says why."""


def written_connector(flags: Flags) -> Mapping[str, Json] | None:
    """What the user wrote, None where nobody did. Placeholders may stand where numbers will. Raises BadConnector."""
    flag = flags.last(KV_TRANSFER_CONFIG)
    if flag is None:
        return None
    text = _BARE_PLACEHOLDER.sub("0", flag.value or "")
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise BadConnector(f"it is not JSON: {wrong}") from None
    if not isinstance(read, dict):
        raise BadConnector(f"it is a {type(read).__name__}, not a JSON object")
    return read
