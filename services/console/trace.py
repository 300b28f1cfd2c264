"""`paceline trace`: a session's timeline, from the server that keeps it or from a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from paceline import Client, NotFound, PacelineError, Session, SessionStatus
from pydantic import Field
from rich.console import Console

from services.cluster.flags import complain
from services.console.connection import Addresses, Connection
from services.console.generate import INTERRUPTED
from services.console.timeline.page import page
from services.console.timeline.records import Record, Trace, load, save
from services.console.timeline.rounds import Round, Timeline, timeline
from services.console.timeline.terminal import render, row_of
from services.contract.errors import StartError
from services.runtime.atomic_file import write_whole
from services.runtime.options import option, options

POLL_SECONDS = 0.5
_OVER = (SessionStatus.FINISHED, SessionStatus.ABORTED)


@options
class AnyConnection(Connection):
    """The same, for who may not need it."""

    addresses: Addresses = Field(default_factory=list)


@options
class TraceOptions:
    """Which session, and where its timeline goes."""

    connection: AnyConnection
    session: str = option("The session's id (its request_id).", "", section="Arguments", word=True)
    file: Path | None = option(
        "Read a trace file instead of asking for a session.", None, section="What is shown"
    )
    follow: bool = option("Go on until the session ends.", False)
    last: int = option("How many rounds to show on the screen; 0 = all.", 24, ge=0)
    html: Path | None = option("Also write the timeline as a page.", None)
    save: Path | None = option("Also write the rounds as a trace file.", None)


def run_trace(options: TraceOptions) -> int:
    """Show it; the exit status. 2 = a setting is not allowed; one line says why."""
    console = Console(highlight=False)
    try:
        trace = _trace(options, console)
        shown = timeline(trace)
        console.print(render(shown, console, options.last))
        if options.html is not None:
            write_whole("--html", options.html, page(shown))
        if options.save is not None:
            save(options.save, trace)
    except StartError as error:
        return complain("trace", error, status=2)
    except NotFound:
        unknown = f"no session {options.session!r} here that may be seen with this token"
        return complain("trace", PacelineError(unknown), status=1)
    except PacelineError as error:
        return complain("trace", error, status=1)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _trace(options: TraceOptions, console: Console) -> Trace:
    if (options.file is None) == (not options.session):
        raise StartError("give the session's id, or --file with a trace file")
    if options.file is not None:
        return load(options.file)
    if not options.connection.addresses:
        raise StartError("--address: needed to ask for a session")
    try:
        client = Client(**options.connection.arguments())
    except ValueError as error:
        raise StartError(str(error)) from error
    return asyncio.run(_ask(client, options, console))


async def _ask(client: Client, options: TraceOptions, console: Console) -> Trace:
    async with client:
        session, records = await _rounds(client, options.session, 0)
        while options.follow and session.status not in _OVER:
            await asyncio.sleep(POLL_SECONDS)
            seen = max((one.offset + one.stats.emitted_tokens for one in records), default=0)
            session, more = await _rounds(client, options.session, seen)
            _show_new(timeline(Trace.of(session, records + more)), len(more), console)
            records += more
        return Trace.of(session, records)


async def _rounds(client: Client, name: str, offset: int) -> tuple[Session, list[Record]]:
    session = await client.get_session(name, rounds=True, offset=offset)
    return session, [Record.of(told) for told in session.rounds]


def _show_new(line: Timeline, count: int, console: Console) -> None:
    """The rounds that came since the last look, a line each."""
    new: tuple[Round, ...] = line.rounds[len(line.rounds) - count :]
    for one in new:
        *figures, text = row_of(one, console.is_terminal)
        console.print("  ".join(f"{figure!s:>8}" for figure in figures), end="  ")
        console.print(text)
