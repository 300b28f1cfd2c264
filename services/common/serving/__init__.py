"""Serving over gRPC: what every process of Paceline shares.

border     the one place where exceptions become gRPC statuses, by a table
options    listening, TLS, channel and server options
server     a grpc.aio server with health and reflection
lifecycle  the event loop and the signals that end a process
links      the servicers of a worker's link, one implementation for both roles
worker     a whole worker process around a `WorkerHost`
"""

from services.common.serving.border import border, status_of
from services.common.serving.lifecycle import run, stop_on_signals
from services.common.serving.links import LinkServer
from services.common.serving.options import (
    MAX_MESSAGE_BYTES,
    ServingOptions,
    TlsFiles,
    channel_options,
    open_channel,
)
from services.common.serving.server import GrpcServer
from services.common.serving.worker import serve_worker

__all__ = [
    "MAX_MESSAGE_BYTES",
    "GrpcServer",
    "LinkServer",
    "ServingOptions",
    "TlsFiles",
    "border",
    "channel_options",
    "open_channel",
    "run",
    "serve_worker",
    "status_of",
    "stop_on_signals",
]
