"""A timeline on a screen: lanes as wide as the window, and a line for each round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.console.timeline.rounds import (
    ACCEPTED,
    OWN,
    RECOVERED,
    REJECTED,
    UNJUDGED,
    Round,
    Stretch,
    Timeline,
    Token,
)

FATES = {
    ACCEPTED: "green",
    RECOVERED: "bold yellow",
    OWN: "cyan",
    REJECTED: "strike red",
    UNJUDGED: "dim strike",
}
LEGEND = Text.assemble(
    ("■ drafted and accepted  ", FATES[ACCEPTED]),
    ("■ recovered  ", FATES[RECOVERED]),
    ("■ the target's own  ", FATES[OWN]),
    ("rejected", FATES[REJECTED]),
    "  ",
    ("drafted beyond a rejection", FATES[UNJUDGED]),
)
MARKS = {ACCEPTED: "+", RECOVERED: "~", OWN: "", REJECTED: "-", UNJUDGED: "?"}
PLAIN_LEGEND = Text(
    "+accepted  ~recovered  the target's own  -rejected  ?drafted beyond a rejection"
)
_LANES = ("drafter", "verifier", "client")
_NAME_WIDTH = 12
_COLUMNS_PER_ROUND = 14
_NARROWEST = 40


@dataclass(frozen=True, slots=True)
class _Part:
    lane: int
    stretch: Stretch
    mark: str
    style: str


def summary(line: Timeline) -> str:
    """The session in one line of figures."""
    trace = line.trace
    parts = [
        f"session {trace.session_id}" + (f" ({trace.status})" if trace.status else ""),
        f"{len(line.rounds)} rounds in {line.end / 1e3:.2f} s",
        f"{line.tokens} tokens, {line.tokens / max(1, len(line.rounds)):.2f} a round",
    ]
    if line.drafted:
        parts.append(f"{line.accepted} of {line.drafted} draft tokens accepted")
    if line.unjudged:
        parts.append(f"{line.unjudged} more thrown away")
    if line.drafting_ms:
        share = line.hidden_ms / line.drafting_ms
        parts.append(f"{share:.0%} of drafting hidden behind verifying")
    return " · ".join(parts)


def render(line: Timeline, console: Console, last: int) -> RenderableType:
    """Lanes and rounds, of the `last` rounds only; 0 = all."""
    shown = line.rounds[-last:] if last else line.rounds
    coloured = console.is_terminal and not console.no_color
    parts: list[RenderableType] = [summary(line)]
    if line.trace.cut:
        parts.append("The file is cut short: this is what it has.")
    if len(shown) < len(line.rounds):
        parts.append(f"The last {len(shown)} rounds (--last 0 shows all):")
    if shown:
        parts += ["", *_lanes(shown, max(_NARROWEST, console.width - _NAME_WIDTH)), ""]
        parts += [LEGEND if coloured else PLAIN_LEGEND, _table(shown, coloured)]
    return Group(*parts)


def text_of(tokens: Sequence[Token], coloured: bool) -> Text:
    """Tokens, each in the colour of its fate, or behind a mark of it."""
    text = Text()
    for token in tokens:
        shown = token.text.replace("\n", "⏎").replace("\t", "⇥")
        if coloured:
            text.append(shown, style=FATES.get(token.fate, ""))
        else:
            text.append(f"{MARKS.get(token.fate, '')}{shown}")
    return text


def row_of(one: Round, coloured: bool) -> tuple[RenderableType, ...]:
    """What the table says of a round."""
    stats = one.record.stats
    drafted = f"{stats.accepted_tokens}/{stats.draft_tokens}" if stats.draft_tokens else "-"
    return (
        str(stats.index),
        f"{one.whole.start:.1f}",
        f"{stats.draft_ms:.1f}" if stats.draft_tokens else "-",
        f"{one.queue.length:.1f}",
        f"{one.verify.length:.1f}",
        drafted,
        text_of(one.tokens, coloured),
    )


COLUMNS = ("round", "at ms", "draft", "queue", "verify", "kept", "tokens")


def _table(shown: Sequence[Round], coloured: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(
            name, justify="left" if name == "tokens" else "right", no_wrap=name != "tokens"
        )
    for one in shown:
        table.add_row(*row_of(one, coloured))
    return table


# --- lanes -----------------------------------------------------------------------------


def _lanes(shown: Sequence[Round], width: int) -> Iterator[Text]:
    """Strips of three lanes, one below the other, each with its time at the left."""
    parts = [part for one in shown for part in _parts(one)]
    begin = min(part.stretch.start for part in parts)
    end = max(part.stretch.end for part in parts)
    per_column = max(0.01, median(one.whole.length for one in shown) / _COLUMNS_PER_ROUND)
    while begin < end:
        after = begin + per_column * width
        columns = min(width, int((end - begin) / per_column) + 1)
        at = f"{max(0.0, begin):.0f} ms".ljust(_NAME_WIDTH)
        yield Text(f"{at}1 column = {per_column:.1f} ms", "dim")
        for lane, name in enumerate(_LANES):
            inside = [
                part
                for part in parts
                if part.lane == lane and part.stretch.start < after and part.stretch.end >= begin
            ]
            yield Text(name.ljust(_NAME_WIDTH)) + _paint(inside, begin, per_column, columns)
        begin = after
        if begin < end:
            yield Text()


def _parts(one: Round) -> Iterator[_Part]:
    if one.void is not None:
        yield _Part(0, one.void, "░", "red")
    if one.draft is not None:
        yield _Part(0, one.draft, "█", "green")
    yield _Part(1, one.queue, "·", "yellow")
    yield _Part(1, one.verify, "█", "blue")
    told = one.record.stats.emitted_tokens
    mark = str(told) if told < 10 else "+"
    yield _Part(2, Stretch(one.whole.end, one.whole.end), mark, "cyan")


def _paint(parts: Sequence[_Part], begin: float, per_column: float, columns: int) -> Text:
    """One lane; of parts that meet in a column the later one of `parts` shows."""
    cells: list[tuple[str, str]] = [(" ", "")] * columns
    for part in parts:
        first = int((part.stretch.start - begin) / per_column)
        after = max(first + 1, round((part.stretch.end - begin) / per_column))
        if part.stretch.length == 0 and part.mark == "·":
            continue
        for column in range(max(0, first), min(columns, after)):
            cells[column] = (part.mark, part.style)
    return Text.assemble(*cells)
