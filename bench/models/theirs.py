"""``transformers`` on the same directory: ``generate`` with a static batch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


class Theirs:
    """One model, loaded once, in float32."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers deprecates its own arguments
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging

            logging.set_verbosity_error()
            logging.disable_progress_bar()
            self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        """Exactly ``tokens`` for every prompt; shorter ones are padded on the left."""
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, longest - len(prompt) :] = 1
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
