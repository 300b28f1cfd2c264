"""Ports for programs that must be told one."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now, of loopback or of another address; empty: of all."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
