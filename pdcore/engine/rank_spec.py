"""What a leader hands a rank at its start: one msgpack message on an inherited pipe.

A rank reads no command line, no environment and no store of its own: whatever it knows of the outside is here.
"""

from __future__ import annotations

import msgspec

from pdcore.telemetry import LogFormat


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place, model and limits. ``dispatch`` is the ZMQ address of its leader.

    ``beat_fd`` is the write end of the pipe on which the rank proves to the registrar that its loop turns.
    ``runtime_dir`` is a private directory (0700) for this instance's unix sockets.
    """

    role: str
    instance_id: str
    incarnation: str
    dp: int = 0
    cp: int = 0
    tp: int = 0
    dp_size: int = 1
    cp_size: int = 1
    tp_size: int = 1
    rank_ip: str
    dispatch: str
    runtime_dir: str
    beat_fd: int | None
    model: str
    device: str
    dtype: str
    block_size: int
    kv_tokens: int
    max_model_len: int | None
    max_batch: int
    max_prefill_tokens: int
    max_queue: int
    num_reserved_decode_tokens: int
    transfer_threads: int
    torch_threads: int | None
    log_format: LogFormat
    log_level: str

    @property
    def identity(self) -> bytes:
        """The routing id of this rank's dispatch socket."""
        return f"{self.dp}.{self.cp}.{self.tp}".encode()
