"""What a leader hands a rank at its start: one msgpack message on an inherited pipe.

A rank reads no command line, no environment and no store of its own: whatever it knows of the outside is here.
"""

from __future__ import annotations

import msgspec

from pdcore.engine.placement import Sizes
from pdcore.telemetry import LogFormat
from pdcore.topology.keys import RankPosition


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place, model and limits. ``dispatch`` is the ZMQ address of its leader.

    ``device_index`` counts the ranks of this machine. ``rendezvous`` is where all ranks of the instance meet for
    torch.distributed: ``file:///path`` on one machine, ``tcp://ip:port`` on several (``rendezvous_fd`` is the listening
    socket of that address, inherited by rank 0.0.0 alone), empty for an instance of one rank. ``step_link`` is the ZMQ
    address on which the DP leader meets its other ranks; ``tcp://ip:0`` has it pick a port and say so at the rendezvous.
    ``beat_fd`` is the write end of the pipe on which the rank proves to the registrar that its loop turns.
    ``runtime_dir`` is a private directory (0700) for this instance's unix sockets. ``fence_s`` after a peer's end was
    ordered, its writes must be known to be over. Whoever waits for a peer that answers nothing for ``peer_silence_s`` fails.
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
    device_index: int = 0
    rank_ip: str
    rendezvous: str = ""
    rendezvous_fd: int | None = None
    step_link: str = ""
    curve_secret: str | None = None
    dispatch: str
    runtime_dir: str
    beat_fd: int | None
    model: str
    device: str
    dtype: str
    block_size: int
    prefix_cache: bool = True
    per_chunk_sending: bool = False
    kv_tokens: int
    max_model_len: int | None
    max_batch: int
    max_prefill_tokens: int
    max_queue: int
    num_reserved_decode_tokens: int
    fence_s: float = 20.0
    transfer_engine: str = "auto"
    transfer_secret: str | None = None
    mooncake_protocol: str = "tcp"
    mooncake_device: str | None = None
    memfabric_protocol: str = "sdma"
    memfabric_store: str | None = None
    transfer_threads: int
    peer_silence_s: float = 20.0
    torch_threads: int | None
    log_format: LogFormat
    log_level: str

    @property
    def identity(self) -> bytes:
        """The routing id of this rank's dispatch socket."""
        return str(self.position).encode()

    @property
    def position(self) -> RankPosition:
        """Where it stands in the instance."""
        return RankPosition(self.dp, self.cp, self.tp)

    @property
    def sizes(self) -> Sizes:
        """The instance's layout."""
        return Sizes(dp=self.dp_size, cp=self.cp_size, tp=self.tp_size)

    @property
    def group(self) -> tuple[RankPosition, ...]:
        """The ranks of this one's DP group, the DP leader first."""
        return tuple(rank for rank in self.sizes.positions() if rank.dp == self.dp)

    @property
    def leads(self) -> bool:
        """Whether this rank decides for its DP group."""
        return self.cp == self.tp == 0
