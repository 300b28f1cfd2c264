"""What the demo says of its figures."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from paceline import DraftSource, DraftSourceMetrics
from rich.console import Console

from services.console.demo import PROMPTS
from services.console.demo_table import (
    DECODING,
    TIMES,
    Answered,
    decoding_table,
    sources_table,
    times_table,
    verdict,
)

FIRST_S = 0.5


def measured(tokens, seconds, efficiency=1.0, proposed=0, accepted=0, text=None, sources=()):
    """The first of the tokens after FIRST_S, the others in `seconds` after it."""
    speculation = SimpleNamespace(
        num_draft_tokens=proposed,
        num_accepted_draft_tokens=accepted,
        sources=[DraftSourceMetrics(*one) for one in sources],
    )
    return SimpleNamespace(
        tokens=tokens,
        later_tokens=tokens - 1,
        first_token_s=FIRST_S,
        total_s=seconds + FIRST_S,
        block_efficiency=efficiency,
        complete=SimpleNamespace(speculation=speculation),
        token_ids=tuple(range(tokens)) if text is None else text,
    )


def answered(drafted_s, plain_s, all_s, **drafted):
    return Answered(
        "one", measured(61, drafted_s, **drafted), measured(61, plain_s), measured(61, all_s)
    )


def cells(table, row):
    return [list(column.cells)[row] for column in table.columns]


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ((2, 4, 3), "with Paceline"),
        ((3, 4, 2), "plain, on all cores"),
        ((4, 2, 3), "plain, on the verifier's cores"),
    ],
)
def test_the_verdict_names_the_fastest(seconds, fastest):
    assert verdict([answered(*seconds)]).startswith(f"Decoding was fastest here {fastest};")


def test_the_verdict_says_how_much_each_way_gave():
    words = verdict([answered(2, 4, 3)])
    assert "gave 2.00 times" in words
    assert "plain decoding 1.33 times" in words


def test_all_prompts_together_are_tokens_over_time_after_the_first_token():
    first = answered(1, 2, 2, efficiency=2.0, proposed=100, accepted=50)
    second = answered(5, 4, 4, efficiency=1.0, proposed=0)
    table = decoding_table([first, second])
    both = dict(zip(DECODING, cells(table, 2), strict=True))
    assert (both["decoding, tokens/s"], both["drafted"]) == ("all", "20.0")
    assert (both["plain"], both["all cores"]) == ("20.0 1.00×", "20.0 1.00×")
    assert both["efficiency"] == "1.33"
    assert both["kept"] == "50%"
    assert dict(zip(DECODING, cells(table, 1), strict=True))["kept"] == "-"


def test_the_first_token_and_the_whole_stand_apart_from_decoding():
    one = replace(answered(1, 2, 4), plain=measured(61, 2.5))
    assert len(TIMES) == 7
    assert cells(times_table([one]), 0) == [
        "one",
        *("500", "500", "500"),
        *("40.7", "20.3 2.00×", "13.6 3.00×"),
    ]
    assert cells(decoding_table([one]), 0)[1:4] == ["60.0", "24.0 2.50×", "15.0 4.00×"]


def test_a_table_says_what_each_source_brought_to_each_prompt_and_to_all():
    text, laws = DraftSource.THIS_TEXT, DraftSource.LAWS
    first = answered(1, 2, 2, sources=[(laws, 5, 2), (text, 200, 100)])
    second = answered(1, 2, 2, sources=[(laws, 10, 3)])
    table = sources_table([first, second])
    assert [column.header for column in table.columns] == ["drafts kept from", "one", "one", "all"]
    assert cells(table, 0) == ["this text", "100 of 200", "-", "100 of 200"]
    assert cells(table, 1) == ["the target's texts", "2 of 5", "3 of 10", "5 of 15"]
    assert len(table.rows) == 2


def test_the_table_of_sources_is_no_wider_than_a_terminal():
    many = [(source, 200, 100) for source in DraftSource]
    prompts = [replace(answered(1, 2, 2, sources=many), title=one.name) for one in PROMPTS]
    console = Console(width=300)
    assert console.measure(sources_table(prompts)).maximum <= 80


def test_other_tokens_are_shown():
    other = Answered("one", measured(3, 1), measured(3, 1, text=(0, 1, 9)), measured(3, 1))
    assert cells(decoding_table([other]), 0)[-1] == "no"
