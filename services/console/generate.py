"""`paceline generate`: one prompt, its text as it is committed, and the figures."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline import Chunk, Client, Event, PacelineError
from rich.console import Console

from services.cluster.asking import follow, question
from services.cluster.figures import Measured, by_source, summary
from services.cluster.process import complain
from services.console.connection import Connection
from services.console.generate_form import Form
from services.console.render import Colours, PlainText, Renderer
from services.contract.errors import StartError

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What to ask and how to show it. `options` go to the client as they are."""

    connection: Connection
    prompt: str
    raw: bool = False
    system: str = ""
    as_json: bool = False
    form: Form = field(default_factory=Form)
    options: Mapping[str, Any] = field(default_factory=dict)


def run_generate(options: GenerateOptions) -> int:
    """Generate and print; the exit status. 2 = a setting is not allowed; one line says why."""
    try:
        form = options.form.arguments()
        client = Client(**options.connection.arguments())
    except (StartError, ValueError) as error:
        return complain("generate", error, status=2)
    try:
        asyncio.run(_generate(client, options, form))
    except KeyboardInterrupt:
        return INTERRUPTED
    except PacelineError as error:
        return complain("generate", error, status=1)
    return 0


async def _generate(client: Client, options: GenerateOptions, form: Mapping[str, Any]) -> None:
    async with client:
        asked = await question(client, options.prompt, raw=options.raw, system=options.system)
        asked |= {"include_rounds": True, **form, **options.options}
        if options.as_json:
            await follow(client, asked, _print_json)
            return
        console = Console(highlight=False)
        measured = await follow(client, asked, shown_by(renderer_for(console)))
        console.print()
    report_end(measured)


def shown_by(renderer: Renderer) -> Callable[[Event], None]:
    """Shows the chunks among the events."""

    def show(event: Event) -> None:
        if isinstance(event, Chunk):
            renderer.show(event)

    return show


def renderer_for(console: Console) -> Renderer:
    """Colours in a terminal, the bare text in a pipe."""
    return Colours(console) if console.is_terminal else PlainText(console)


def report_end(measured: Measured) -> None:
    """The summary, beside the text rather than in it."""
    console = Console(stderr=True, highlight=False)
    end = f"session {measured.started.session_id} · seed {measured.started.seed}"
    reason = measured.complete.finish_reason.value
    lines = [summary(measured), by_source(measured), f"{end} · ended by {reason}"]
    console.print("\n".join(filter(None, lines)), style="dim", soft_wrap=True)


def _print_json(event: Event) -> None:
    line = {"event": type(event).__name__.lower(), **asdict(event)}
    sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    sys.stdout.flush()
