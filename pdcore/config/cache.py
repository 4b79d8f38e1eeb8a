"""Where pdcore keeps what it made once for this user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where pdcore keeps what it made once for this user (converted models): ``PDCORE_CACHE``, else XDG's."""
    env = os.environ if environ is None else environ
    if env.get("PDCORE_CACHE"):
        return Path(env["PDCORE_CACHE"])
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdcore"


def demo_model_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where the converted demo model lies once ``pdcore demo-model`` has made it."""
    return cache_directory(environ) / "models" / "SmolLM2-135M-Instruct"
