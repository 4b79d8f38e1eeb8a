"""What a strict engine refuses: fields of one request that contradict each other."""

from __future__ import annotations

from typing import Any


def contradictions(body: dict[str, Any]) -> list[str]:
    """Every reason for a 400, as engines have given them to routers that rewrote half of a request."""
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    most = min(limits) if limits else None
    found = []
    if body.get("stream_options") is not None and not body.get("stream"):
        found.append("stream_options is only allowed when streaming")
    if most is not None and (body.get("min_tokens") or 0) > most:
        found.append("min_tokens is larger than max_tokens")
    best_of, n = body.get("best_of"), body.get("n") or 1
    if best_of is not None and best_of < n:
        found.append("best_of is less than n")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        found.append("top_logprobs needs logprobs")
    if body.get("stream") and best_of is not None and best_of > n:
        found.append("best_of cannot be streamed")
    return found


def not_a_prefill(body: dict[str, Any]) -> list[str]:
    """Every reason why ``body`` would not end as a prefill whose KV is kept: one token, ended by its limit."""
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if name in body]
    found = [f"{limit} tokens are asked for" for limit in limits if limit != 1]
    found += [] if limits else ["no limit is given"]
    found += ["it streams"] if body.get("stream") else []
    found += ["it could end at a stop"] if body.get("stop") or body.get("stop_token_ids") else []
    found += [] if body.get("ignore_eos") else ["it could end at the end of the text"]
    return found
