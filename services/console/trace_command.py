"""The flags of `paceline trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.console.connection import (
    Authority,
    Certificate,
    Connection,
    Insecure,
    OptionalAddresses,
    PrivateKey,
    ServerName,
    Token,
)


def trace(
    session: Annotated[str, typer.Argument(help="The session's id (its request_id).")] = "",
    address: OptionalAddresses = None,
    file: Annotated[
        Path | None, typer.Option(help="Read a trace file instead of asking for a session.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the session ends.")] = False,
    last: Annotated[
        int, typer.Option(min=0, help="How many rounds to show on the screen; 0 = all.")
    ] = 24,
    html: Annotated[Path | None, typer.Option(help="Also write the timeline as a page.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also write the rounds as a trace file.")] = (
        None
    ),
    token: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: PrivateKey = None,
    server_name: ServerName = None,
    insecure: Insecure = False,
) -> None:
    """Show where each millisecond and each drafted token of a session went."""
    from services.console.trace import TraceOptions, run_trace

    connection = Connection(address or (), token, ca, cert, key, server_name, insecure)
    raise typer.Exit(run_trace(TraceOptions(connection, session, file, follow, last, html, save)))
