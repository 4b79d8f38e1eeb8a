"""The store contract on etcd's v3 API: a small asyncio client on grpcio and protobuf.

``wire.proto`` names the messages; ``endpoints`` owns connections and deadlines; ``faults`` turns gRPC errors into
ours; ``revisions`` puts a watch's events together again; ``watch`` and ``driver`` are the contract.
"""
