"""The flags of `paceline top`."""

from __future__ import annotations

from typing import Annotated

import typer

from services.console.connection import (
    Addresses,
    Authority,
    Certificate,
    Connection,
    Insecure,
    PrivateKey,
    ServerName,
    Token,
)


def top(
    address: Addresses,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, print what was between, end.")
    ] = False,
    token: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: PrivateKey = None,
    server_name: ServerName = None,
    insecure: Insecure = False,
) -> None:
    """Watch workers, sessions, tokens per second and acceptance, until Ctrl-C."""
    from services.console.top import TopOptions, run_top

    connection = Connection(address, token, ca, cert, key, server_name, insecure)
    raise typer.Exit(run_top(TopOptions(connection, every, once)))
