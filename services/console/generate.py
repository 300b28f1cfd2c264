"""`paceline generate`: one prompt, its text as it is committed, and the figures."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from paceline import Chunk, Client, Event, PacelineError
from paceline.together import MOST_COMPLETIONS
from rich.console import Console

from services.cluster.asking import follow, question
from services.cluster.figures import Measured, Stopwatch, by_source, summary
from services.cluster.flags import complain
from services.console.connection import Connection
from services.console.generate_form import Form, Templated
from services.console.render import Colours, PlainText, Renderer
from services.contract.errors import StartError
from services.contract.sampling import NUMBERS
from services.runtime.options import option, options

INTERRUPTED = 130

T = TypeVar("T")


def _with_numbers(kind: type[T]) -> type[T]:
    """An option for each sampling number."""
    section: str | None = "Sampling"
    for name, one in NUMBERS.items():
        kind.__annotations__[name] = one.kind | None
        setattr(kind, name, option(one.help, None, section=section))
        section = None
    return kind


@options
@_with_numbers
class Numbers:
    """The sampling parameters that are plain numbers."""


@options
class Asked:
    """What the client is asked for as it is given here."""

    max_tokens: int | None = option("Most tokens to generate.", None)
    min_tokens: int | None = option("Do not stop before this many.", None)
    seed: int | None = option("The same seed gives the same text.", None)
    n: int | None = option(
        "So many completions at once; each one's seed is one more than the last one's.",
        None,
        ge=1,
        le=MOST_COMPLETIONS,
    )
    stop: list[str] | None = option("End before this text; repeatable.", None)
    ignore_eos: bool = option("Go on after the end-of-text token.", False)
    allowed_token_ids: list[int] | None = option("Generate no other tokens; repeatable.", None)
    bad_words: list[str] | None = option("Keep this text out of the output; repeatable.", None)
    truncate_prompt_tokens: int | None = option("Keep the last so many tokens of the prompt.", None)
    priority: int | None = option("Lower is sooner, among this tenant's sessions.", None)
    method: str | None = option(
        "Drafting method, or several joined by commas.", None, section="Speculation"
    )
    rejection_sample_method: str | None = option(
        "Verification rule: auto, coupled, standard or block.", None
    )
    num_speculative_tokens: int | None = option("Most tokens drafted ahead.", None)
    num_candidates: int | None = option("Draft this many candidates per position.", None)
    disable_speculative_decoding: bool = option("Plain decoding.", False, flag="no-speculation")


@options
class GenerateOptions:
    """What to ask and how to show it."""

    connection: Connection
    form: Form
    templated: Templated
    numbers: Numbers
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
        talk = options.templated.arguments(options.raw)
        client = Client(**options.connection.arguments(), resume=not options.no_resume)
    except (StartError, ValueError) as error:
        return complain("generate", error, status=2)
    try:
        asyncio.run(_generate(client, options, form, talk))
    except KeyboardInterrupt:
        return INTERRUPTED
    except PacelineError as error:
        return complain("generate", error, status=1)
    return 0


def _given(*groups: Any) -> dict[str, Any]:
    """What `Client.generate` takes: all that was given."""
    given = [pair for group in groups for pair in asdict(group).items()]
    return {name: value for name, value in given if value is not None and value is not False}


async def _generate(
    client: Client, options: GenerateOptions, form: Mapping[str, Any], talk: Mapping[str, Any]
) -> None:
    async with client:
        raw, system = options.raw, options.system
        asked = await question(client, options.prompt, raw=raw, system=system, talk=talk)
        asked |= {"include_rounds": True, **form, **_given(options.numbers, options.asked)}
        if options.as_json:
            await follow(client, asked, _print_json)
            return
        console = Console(highlight=False)
        if options.asked.n is not None:
            await follow(client, asked, OneByOne(console, options.asked.n).see)
            return
        measured = await follow(client, asked, shown_by(renderer_for(console)))
        console.print()
    report_end(measured)


class OneByOne:
    """Shows each of several completions when it has ended, with its figures."""

    def __init__(self, console: Console, count: int) -> None:
        self._console = console
        self._watches = [Stopwatch() for _ in range(count)]
        self._chunks: list[list[Chunk]] = [[] for _ in range(count)]

    def see(self, event: Event) -> None:
        """Take an event of any of them."""
        measured = self._watches[event.index].see(event)
        if isinstance(event, Chunk):
            self._chunks[event.index].append(event)
        if measured is not None:
            renderer = renderer_for(self._console)
            for chunk in self._chunks[event.index]:
                renderer.show(chunk)
            self._console.print()
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
