"""What a person sees of a text and its tokens."""

from __future__ import annotations

import io

from paceline import Chunk, Origin
from rich.console import Console

from services.console.render import Colours, Marks, PlainText
from tests.console.events import chunk

MIXED = chunk(
    ("The", Origin.BONUS),
    (" quick", Origin.ACCEPTED),
    (" brown", Origin.ACCEPTED),
    (" dog", Origin.RECOVERED),
)


def shown(kind, *chunks: Chunk, terminal: bool = False) -> str:
    file = io.StringIO()
    colours = "standard" if terminal else None
    console = Console(file=file, force_terminal=terminal, color_system=colours, width=20)
    renderer = kind(console)
    for one in chunks:
        renderer.show(one)
    return file.getvalue()


def test_plain_text_is_the_text_alone():
    assert shown(PlainText, MIXED, MIXED) == "The quick brown dogThe quick brown dog"


def test_markup_and_long_lines_of_a_model_are_printed_as_they_are():
    text = "[bold]x[/bold] " + "word " * 30
    assert shown(PlainText, Chunk(0, (1,), text)) == text


def test_marks_tell_accepted_and_recovered_tokens_from_the_targets_own():
    assert shown(Marks, MIXED) == "The[ quick brown]~ dog"


def test_a_token_without_text_has_no_mark():
    assert shown(Marks, chunk(("end", Origin.BONUS), ("", Origin.RECOVERED))) == "end"


def test_marks_are_closed_at_the_end_of_a_chunk():
    assert shown(Marks, chunk((" a", Origin.ACCEPTED))) == "[ a]"


def test_a_terminal_tells_the_three_origins_apart_by_colour():
    output = shown(Colours, MIXED, terminal=True)
    accepted, recovered, bonus = "\x1b[32m", "\x1b[1;33m", "\x1b[36m"
    assert f"{bonus}The" in output
    assert f"{accepted} quick" in output
    assert f"{recovered} dog" in output


def test_a_chunk_without_origins_is_shown_without_colour():
    assert shown(Colours, Chunk(0, (1, 2), "as it is"), terminal=True) == "as it is"
