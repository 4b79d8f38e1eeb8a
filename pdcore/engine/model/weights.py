"""The tensors of a directory's safetensors files, each taken once and checked against what it must be.

Of a tensor that ranks share, only the own rows or columns are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pdcore.engine.model.directory import read_json, refuse, require_directory

ALL: Final = slice(None)

_FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_PICKLED: Final = "pytorch_model.bin"


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of all files by name. ``unused`` shrinks as they are taken."""

    directory: Path
    files: Mapping[str, Any]  # tensor name -> open safetensors file
    places: Mapping[str, str]  # tensor name -> file name
    unused: set[str]
    device: torch.device
    dtype: torch.dtype

    @classmethod
    @contextmanager
    def open(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> Iterator[Self]:
        """The weights in ``directory``, readable within the block; ConfigError naming the file that is wrong."""
        require_directory(directory)
        with ExitStack() as stack:
            opened, index = _open(directory, stack)
            yield cls(
                directory=directory,
                files={name: opened[file] for name, file in index.items()},
                places=index,
                unused=set(index),
                device=device,
                dtype=dtype,
            )

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self.files

    def take(
        self,
        name: str,
        *shape: int,
        part: tuple[slice, ...] = (ALL,),
        dtype: torch.dtype | None = None,
        as_stored: bool = False,
    ) -> Tensor:
        """``part`` of the tensor on its device, in ``dtype`` if not the model's; the whole must exist and have ``shape``.

        ``as_stored``: in the type it is stored in, if that is narrower.
        """
        if name not in self.files:
            raise refuse(self.directory, f"tensor {name} is missing from the weights")
        self.unused.discard(name)
        try:
            stored = self.files[name].get_slice(name)
            found = stored.get_shape()
            tensor: Tensor | None = stored[part] if found == list(shape) else None
        except SafetensorError as wrong:
            raise refuse(
                self.directory, f"{self.places[name]}: tensor {name} cannot be read: {wrong}"
            ) from wrong
        if tensor is None:
            raise refuse(
                self.directory,
                f"{self.places[name]}: tensor {name} has shape {found}, the config says {list(shape)}",
            )
        if tensor.dtype not in _FLOATS:
            raise refuse(
                self.directory,
                f"{self.places[name]}: tensor {name} has dtype {tensor.dtype}, which is not supported",
            )
        if as_stored and tensor.dtype.itemsize < self.dtype.itemsize:
            dtype = tensor.dtype
        # A copy, because a view would keep the whole file in memory.
        return tensor.to(device=self.device, dtype=dtype or self.dtype, copy=True)

    def ignore(self, unneeded: Callable[[str], bool]) -> None:
        """Some writers store tensors that are not needed."""
        self.unused.difference_update([name for name in self.unused if unneeded(name)])

    def refuse_unused(self) -> None:
        """A weight nobody asked for means a model that is computed differently."""
        left = sorted(name for name in self.unused if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise refuse(
                self.directory, f"{self.places[left[0]]}: tensor {left[0]} has no place in this model"
            )


def _open(directory: Path, stack: ExitStack) -> tuple[dict[str, Any], dict[str, str]]:
    """The open files, and in which of them each tensor is."""
    if (directory / _INDEX).exists():
        index = _weight_map(directory)
        opened = {file: _open_file(directory, file, stack) for file in sorted(set(index.values()))}
    elif (directory / _WHOLE).exists():
        opened = {_WHOLE: _open_file(directory, _WHOLE, stack)}
        index = dict.fromkeys(opened[_WHOLE].keys(), _WHOLE)
    else:
        pickled = (directory / _PICKLED).exists()
        why = f"; {_PICKLED} is not read because unpickling runs code" if pickled else ""
        raise refuse(directory, f"there is neither {_WHOLE} nor {_INDEX}{why}")
    within = {file: frozenset(handle.keys()) for file, handle in opened.items()}
    for name, file in index.items():
        if name not in within[file]:
            raise refuse(directory, f"{file}: tensor {name} is missing, but {_INDEX} places it there")
    return opened, index


def _weight_map(directory: Path) -> dict[str, str]:
    places = read_json(directory, _INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise refuse(directory, f"{_INDEX} has no usable weight_map")
    outside = [file for file in places.values() if Path(file).name != file]
    if outside:
        raise refuse(directory, f"{_INDEX} names {outside[0]!r}, which is not a file of this directory")
    return places


def _open_file(directory: Path, file: str, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(directory / file, framework="pt"))
    except FileNotFoundError as wrong:
        raise refuse(directory, f"{file} is missing, but {_INDEX} names it") from wrong
    except (SafetensorError, OSError) as wrong:
        raise refuse(directory, f"{file} is truncated or no safetensors file: {wrong}") from wrong
