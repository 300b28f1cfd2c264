"""`paceline generate`: one prompt, its text as it is committed, and the figures."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
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
from services.runtime.options import option, options

INTERRUPTED = 130


@options
class Asked:
    """What the client is asked for as it is given here."""

    max_tokens: int | None = option("Most tokens to generate.", None, section="Sampling")
    min_tokens: int | None = option("Do not stop before this many.", None)
    temperature: float | None = option("0 = greedy; left out: the model's default.", None)
    top_p: float | None = option("Keep the likeliest tokens, up to this.", None)
    top_k: int | None = option("Keep this many likeliest tokens.", None)
    min_p: float | None = option("Keep tokens at least this likely, against the likeliest.", None)
    repetition_penalty: float | None = option("Divides the scores of tokens seen before.", None)
    frequency_penalty: float | None = option("Lowers a token by each time it was generated.", None)
    presence_penalty: float | None = option("Lowers a token once it was generated.", None)
    seed: int | None = option("The same seed gives the same text.", None)
    stop: list[str] | None = option("End before this text; repeatable.", None)
    ignore_eos: bool = option("Go on after the end-of-text token.", False)
    method: str | None = option(
        "Drafting method, or several joined by commas.", None, section="Speculation"
    )
    rejection_sample_method: str | None = option(
        "Verification rule: auto, coupled, standard or block.", None
    )
    num_speculative_tokens: int | None = option("Most tokens drafted ahead.", None)
    num_candidates: int | None = option("Draft this many candidates per position.", None)
    disable_speculative_decoding: bool = option("Plain decoding.", False, flag="no-speculation")

    def arguments(self) -> dict[str, Any]:
        """What `Client.generate` takes: all that was given."""
        given = asdict(self).items()
        return {name: value for name, value in given if value is not None and value is not False}


@options
class GenerateOptions:
    """What to ask and how to show it."""

    connection: Connection
    form: Form
    asked: Asked
    prompt: str = option("What to say to the model.", section="Arguments", word=True)
    system: str = option("System message of the conversation.", "", section="Input and output")
    raw: bool = option("Send the prompt as it is, not as a message.", False)
    as_json: bool = option("One JSON object per event.", False, flag="json")
    no_resume: bool = option("End when the connection breaks, rather than go on.", False)


def run_generate(options: GenerateOptions) -> int:
    """Generate and print; the exit status. 2 = a setting is not allowed; one line says why."""
    try:
        form = options.form.arguments()
        client = Client(**options.connection.arguments(), resume=not options.no_resume)
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
        asked |= {"include_rounds": True, **form, **options.asked.arguments()}
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
