"""What the protocols of vLLM and its relatives have in common: how legs are named, and what travels between them. Pure.

These engines make their internal request ids of the ``x-request-id`` header, and some join both legs by it. So it is
ours: the client's own id, which logs can be searched for, and the attempt's room, which nobody else has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from pdcore.router.protocols.base import Attempt, post
from pdcore.router.protocols.prefill_only import one_token
from pdcore.router.protocols.unreadable import Unreadable
from pdcore.router.upstream import Post
from pdcore.topology.instance import Instance

PARAMS: Final = "kv_transfer_params"

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def prefill_post(attempt: Attempt, instance: Instance, params: object, dp_rank: int | None = None) -> Post:
    """The leg that computes the prompt and keeps its KV for whoever ``params`` say, at ``dp_rank`` if one is given."""
    headers = _named(attempt)
    if dp_rank is not None:
        headers["x-data-parallel-rank"] = str(dp_rank)
    return post(replace(attempt, request=one_token(attempt.request)), instance, {PARAMS: params}, headers)


def chosen_rank(attempt: Attempt, prefill: Instance) -> int | None:
    """The data parallel rank that was chosen among several; None where the engine chooses, or has one."""
    return attempt.pick.prefill_dp_rank if prefill.record.dp_size > 1 else None


def decode_post(attempt: Attempt, instance: Instance, params: object) -> Post:
    """The leg that answers: the client's own body, and where the KV comes from."""
    return post(attempt, instance, {PARAMS: params}, _named(attempt))


def transfer_params(document: bytes) -> msgspec.Raw:
    """The transfer parameters in an engine's answer, as they came. Raises :class:`Unreadable`."""
    found = _fields(document, "the answer").get(PARAMS)
    if found is None or not _fields(bytes(found), PARAMS):
        raise Unreadable(f"the answer has no {PARAMS}: nobody could fetch its KV")
    return found


def as_transfer_params(document: bytes) -> msgspec.Raw:
    """A document that is itself a set of transfer parameters. Raises :class:`Unreadable`."""
    if not _fields(document, "what was sent"):
        raise Unreadable("what was sent says nothing")
    return msgspec.Raw(document)


def _fields(document: bytes, what: str) -> Mapping[str, msgspec.Raw]:
    """The fields of an object; none for null."""
    if document.strip() == b"null":
        return {}
    try:
        return _OBJECT.decode(document)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise Unreadable(f"{what} is not a JSON object") from wrong


def _named(attempt: Attempt) -> dict[str, str]:
    return {"x-request-id": f"{attempt.request_id}-{attempt.room:016x}"}
