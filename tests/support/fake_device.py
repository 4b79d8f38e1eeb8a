"""A stand-in for a device's memory: a tensor of the host that counts copies from and to the host, and can hold them up."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


def _open() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass(slots=True)
class Traffic:
    """``to_host`` and ``from_host`` count copies. While ``gate`` is closed a copy to the host stands still, after
    ``waiting`` was set, and reads what is there when the gate opens."""

    to_host: int = 0
    from_host: int = 0
    gate: threading.Event = field(default_factory=_open)
    waiting: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        self.to_host += 1
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(30), "the gate was never opened"


def on_fake_device(tensor: Tensor, traffic: Traffic) -> Tensor:
    """The same memory as a device's would behave."""

    class There(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kept: Any = super().__torch_function__
            if func is Tensor.to and args[1] == "cpu":
                traffic.read()
                return kept(func, types, args, kwargs).as_subclass(Tensor)
            if func is Tensor.copy_ and isinstance(args[1], There) and not isinstance(args[0], There):
                traffic.read()
            if func is Tensor.copy_ and isinstance(args[0], There) and not isinstance(args[1], There):
                traffic.from_host += 1
            return kept(func, types, args, kwargs)

    return tensor.as_subclass(There)


def filled(values: list[int], each: int) -> Tensor:
    """``each`` bytes of every value, flat."""
    return torch.tensor(values, dtype=torch.uint8).repeat_interleave(each)
