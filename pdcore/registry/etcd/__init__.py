"""The store contract on etcd's v3 API: a small asyncio client on grpcio and protobuf.

``wire.proto`` names the messages and ``methods`` the calls; ``endpoints`` owns connections and deadlines; ``identity``
logs in; ``faults`` turns gRPC errors into ours; ``revisions`` puts a watch's events together again; ``watch`` and
``driver`` are the contract; ``condition`` reads how the cluster is.
"""

import os

# Our processes start others with fork and exec while grpc's threads run. Its fork handlers are for children that go on
# without exec; here they only print a warning. This must stand before anything imports grpc.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# What fails is raised and logged by us; grpc's own lines on standard error would say it again in its own words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
