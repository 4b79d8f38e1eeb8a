"""Anonymous memory that another process may map: sealed against resizing, unmapped when we say so.

The owner uses ``mmap``. A peer's memory is mapped through libc, because unmapping must happen at a known instant
(before the link closes) and must not wait for a Python buffer to be collected. Memory of a device is a tensor
(``device_memory``); this module needs no torch.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from pdcore.engine.transfer.plan import Buffer, RegionShape
from pdcore.engine.transfer.records import HostRecords, Records

PAGE: Final = mmap.PAGESIZE
NOTHING: Final = memoryview(b"")
"""What links see of memory that only a library reaches."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_DONTFORK: Final = 10
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def create(nbytes: int) -> int:
    """A file descriptor of ``nbytes`` of zeroed memory whose size nobody can change."""
    fd = os.memfd_create("pdcore-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check(fd: int, nbytes: int) -> None:
    """``ValueError`` unless ``fd`` is sealed memory of exactly ``nbytes``: a shrinking file would kill its writers."""
    size = os.fstat(fd).st_size
    if size != nbytes:
        raise ValueError(f"the offered memory has {size} bytes, not {nbytes}")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ValueError("the offered file is no sealed memory") from error
    if seals & _SEALS != _SEALS:
        raise ValueError("the offered memory can still be resized")


class Region:
    """A decode rank's registered memory: ``nbytes``, zeroed once, open from ``with`` to its end.

    The mapping itself stays for as long as a tensor or a view over it does: the last one unmaps it. Memory that is to
    begin at a multiple of more than a page is no file, and so cannot be mapped by others.
    """

    def __init__(self, nbytes: int, alignment: int = PAGE) -> None:
        self.nbytes = nbytes
        self._alignment = alignment
        self._fd: int | None = None

    def __enter__(self) -> Self:
        if self._alignment > PAGE:
            self.memory = private(self.nbytes, self._alignment)
        else:
            self._fd = create(self.nbytes)
            self.memory = memoryview(mmap.mmap(self._fd, self.nbytes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)

    @property
    def address(self) -> int:
        """Where it begins, as a library that writes it is told."""
        return address_of(self.memory)

    def pool(self, nbytes: int) -> Buffer:
        """Its first ``nbytes``, as the model computes on them."""
        return self.memory[:nbytes]

    def records(self, shape: RegionShape) -> Records:
        """What lies behind the pool, as ``shape`` says."""
        return HostRecords(self.memory, shape)

    @property
    def fd(self) -> int:
        """What others map."""
        if self._fd is None:
            raise RuntimeError("this region is nobody else's to map")
        return self._fd


def private(nbytes: int, alignment: int = PAGE) -> memoryview:
    """Zeroed memory that no other process can map, from a multiple of ``alignment`` on."""
    if alignment <= PAGE:
        return memoryview(mmap.mmap(-1, nbytes))
    whole = memoryview(mmap.mmap(-1, nbytes + alignment))
    first = -address_of(whole) % alignment
    return whole[first : first + nbytes]


class Mapping:
    """A peer's memory in our address space, from construction to ``unmap``. Not inherited by forked children."""

    def __init__(self, fd: int, nbytes: int) -> None:
        flags = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, nbytes, flags, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes failed")
        self.address: int = address
        self.nbytes = nbytes
        self._mapped = True
        _call(_libc.madvise(address, nbytes, _MADV_DONTFORK), "madvise")

    def unmap(self) -> None:
        """Give the addresses back; a second call does nothing. Nobody may be writing."""
        if self._mapped:
            self._mapped = False
            _call(_libc.munmap(self.address, self.nbytes), "munmap")


def address_of(buffer: Buffer) -> int:
    """Where a buffer's bytes lie, as long as the caller keeps the buffer."""
    if isinstance(buffer, memoryview):
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return buffer.data_ptr()


def on_host(buffer: Buffer) -> memoryview:
    """``buffer``, for an engine that copies with the CPU; TypeError for a device's."""
    if not isinstance(buffer, memoryview):
        raise TypeError(f"memory of {buffer.device} is not the host's")
    return buffer


def free_on_host(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this machine, or this container, can still give; others may take them at the same time."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return free  # no container, or none whose limit can be read
    return free if limit == "max" else max(0, min(free, int(limit) - int(used)))


def _call(status: int, what: str) -> None:
    if status:
        raise OSError(ctypes.get_errno(), f"{what} failed")
