"""What ``transformers`` generates greedily in float32: the reference that engines must match."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import torch

TIE: Final = 1e-3


class Golden:
    """One model directory, loaded once."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers deprecates its own arguments at import and load
            from transformers import AutoModelForCausalLM, AutoTokenizer

            self._tokenizer: Any = AutoTokenizer.from_pretrained(directory)
            self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """The chat template applied, ready for an answer."""
        rendered = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self._tokenizer(rendered, add_special_tokens=False)["input_ids"])

    def text_ids(self, text: str) -> list[int]:
        """Plain text as tokens."""
        return list(self._tokenizer(text)["input_ids"])

    def generate(self, prompt: list[int], most: int) -> list[int]:
        """New tokens, the one that ends the answer included."""
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            ids = torch.tensor([prompt])
            made = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=most, pad_token_id=0
            )
        return [int(token) for token in made[0, len(prompt) :]]

    def decode(self, tokens: list[int]) -> str:
        """Text without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def check_text(self, prompt: list[int], text: str, most: int) -> None:
        """Assert that ``text`` is the greedy continuation, up to a tie of the two best logits."""
        expected = self.generate(prompt, most)
        if text == self.decode(expected):
            return
        agreed = next(n for n in range(len(expected)) if not text.startswith(self.decode(expected[: n + 1])))
        gap = self.gap(prompt + expected[:agreed])
        assert gap < TIE, (
            f"{text!r} instead of {self.decode(expected)!r}: token {agreed} differs with a gap of {gap:.4f}"
        )

    def gap(self, tokens: list[int]) -> float:
        """Distance of the two best logits after ``tokens``."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([tokens])).logits[0, -1]
        best = torch.topk(logits, 2).values
        return float(best[0] - best[1])

    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Log probabilities of every token after ``tokens``, float64 ``[vocab]``."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([tokens])).logits[0, -1]
        return logits.double().log_softmax(dim=-1)
