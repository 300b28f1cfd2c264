"""Text on a screen as it is committed, with the origin of every token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from paceline import Chunk, Origin
from rich.console import Console
from rich.text import Text

STYLES = {
    Origin.ACCEPTED: "green",
    Origin.RECOVERED: "bold yellow",
    Origin.BONUS: "cyan",
}
MEANINGS = {
    Origin.ACCEPTED: "drafted and accepted",
    Origin.RECOVERED: "recovered after a rejection",
    Origin.BONUS: "the target's own",
}


class Renderer(Protocol):
    """Prints chunks as they come."""

    def show(self, chunk: Chunk) -> None:
        """Print one chunk, without a line end."""


class PlainText:
    """The text and nothing else."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, chunk: Chunk) -> None:
        """Print one chunk, without a line end."""
        _write(self._console, Text(chunk.text))


class Colours:
    """Accepted, recovered and bonus tokens in colours of their own."""

    legend = Text.assemble(
        *((f"■ {MEANINGS[origin]}   ", style) for origin, style in STYLES.items())
    )

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, chunk: Chunk) -> None:
        """Print one chunk, without a line end."""
        text = Text()
        for piece, origin in labelled(chunk):
            text.append(piece, style=STYLES.get(origin, ""))
        _write(self._console, text)


class Marks:
    """For a screen without colours: [accepted] and ~recovered."""

    legend = Text("[drafted and accepted]  ~recovered after a rejection  the target's own")

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, chunk: Chunk) -> None:
        """Print one chunk, without a line end."""
        _write(self._console, Text("".join(_marked(chunk))))


def labelled(chunk: Chunk) -> Iterator[tuple[str, Origin]]:
    """The text of each token with its origin; unlabelled text where there is none."""
    if not chunk.pieces or len(chunk.pieces) != len(chunk.origins):
        yield chunk.text, Origin.UNKNOWN
        return
    yield from zip(chunk.pieces, chunk.origins, strict=True)


def _marked(chunk: Chunk) -> Iterator[str]:
    inside = False
    for piece, origin in labelled(chunk):
        accepted = origin is Origin.ACCEPTED
        if accepted != inside:
            yield "[" if accepted else "]"
        inside = accepted
        yield f"~{piece}" if piece and origin is Origin.RECOVERED else piece
    if inside:
        yield "]"


def _write(console: Console, text: Text) -> None:
    console.print(text, end="", soft_wrap=True, highlight=False)
    console.file.flush()
