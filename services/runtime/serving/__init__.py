"""Serving over gRPC: what every process of Paceline shares.

border     the one place where exceptions become gRPC statuses, by a table
options    listening, channel and server options
calls      around every method: requests that cannot be parsed, aborted calls' memory
bearer     tokens in the metadata of a call
reloading  files that are read again when they change
tls        certificates on both ends
cluster_token  the secret of a cluster, and the guard before a worker's links
dialing    how an orchestrator connects to workers
health     what a process says of itself: liveness, startup, readiness; a port for probes
server     a grpc.aio server with health and reflection
lifecycle  the event loop, the signals that end a process, and loading beside it
rpcs       the service of each role
links      the servicers of a worker's link, one implementation for both roles
worker     a whole worker process around a `WorkerHost`
"""

from services.runtime.serving.border import border, send_headers, status_of
from services.runtime.serving.cluster_token import ClusterToken, check_worker
from services.runtime.serving.dialing import Dialing
from services.runtime.serving.health import Health
from services.runtime.serving.lifecycle import loaded, run, stop_on_signals
from services.runtime.serving.links import LinkServer
from services.runtime.serving.options import (
    MAX_MESSAGE_BYTES,
    ServingOptions,
    channel_options,
    host_port,
    open_channel,
    server_credentials,
)
from services.runtime.serving.server import GrpcServer
from services.runtime.serving.tls import TlsFiles, tls_contexts
from services.runtime.serving.worker import Served, serve_worker

__all__ = [
    "MAX_MESSAGE_BYTES",
    "ClusterToken",
    "Dialing",
    "GrpcServer",
    "Health",
    "LinkServer",
    "Served",
    "ServingOptions",
    "TlsFiles",
    "border",
    "channel_options",
    "check_worker",
    "host_port",
    "loaded",
    "open_channel",
    "run",
    "send_headers",
    "serve_worker",
    "server_credentials",
    "status_of",
    "stop_on_signals",
    "tls_contexts",
]
