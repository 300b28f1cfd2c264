"""Who sends the calls to one server, or to the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.store.calls import Sender
from orchestrator.store.delivery import ClusterServers, OneServer
from orchestrator.store.lanes import Lanes
from orchestrator.store.writer import Writer, WriterOptions


def sender(
    servers: OneServer | ClusterServers,
    options: WriterOptions,
    on_fenced: Callable[[], None] = lambda: None,
) -> Sender:
    """What fits the servers."""
    if isinstance(servers, ClusterServers):
        return Lanes(servers, options, on_fenced)
    return Writer(servers, options, on_fenced)
