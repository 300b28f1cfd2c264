"""What the demo says of its figures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from services.console.demo import PROMPTS
from services.console.demo_table import HEADINGS, Answered, decoding, table, verdict


def measured(rate, tokens=61, efficiency=1.0, first_s=0.5, text=None):
    """A run with so many tokens a second after the first."""
    return SimpleNamespace(
        tokens=tokens,
        later_tokens=tokens - 1,
        decode_rate=rate,
        first_token_s=first_s,
        block_efficiency=efficiency,
        token_ids=tuple(range(tokens)) if text is None else text,
    )


def answered(drafted, plain, title="one", **run):
    """Runs at these rates."""
    return Answered(title, [measured(one, **run) for one in drafted], [*map(measured, plain)])


def cells(made, row):
    return dict(zip(HEADINGS, [list(column.cells)[row] for column in made.columns], strict=True))


def test_the_last_words_are_the_gain_and_its_range():
    pairs = [answered([60.0], [30.0]), answered([30.0], [30.0])]
    assert verdict(pairs) == (
        "On this machine Paceline wrote 1.33 times as fast as the same model without drafts "
        "(1.00 to 2.00 by prompt)."
    )


def test_where_drafts_cost_more_than_they_brought_the_last_words_say_so():
    words = verdict([answered([24.0], [30.0])])
    assert "0.80 times as fast" in words
    assert words.endswith("(0.80 to 0.80 by prompt): drafts did not pay.")


@pytest.mark.parametrize("odd", [0.5, 500.0])
def test_one_odd_run_of_three_changes_no_figure(odd):
    one = cells(table([answered([60.0, odd, 60.0], [30.0, 30.0, odd])]), 0)
    assert (one["with drafts"], one["without"], one["gain"]) == ("60.0", "30.0", "2.00×")


def test_all_prompts_together_are_tokens_over_time():
    assert decoding([[measured(60.0)], [measured(15.0)]]) == pytest.approx(24.0)
    pairs = [answered([60.0], [30.0], efficiency=2.0), answered([15.0], [30.0], first_s=0.7)]
    every = cells(table(pairs), 2)
    assert (every["decoding, tokens/s"], every["gain"]) == ("all", "0.80×")
    assert (every["first token, ms"], every["tokens a step"]) == ("600, 500", "1.33")


def test_an_answer_of_one_token_has_no_speed_and_breaks_nothing():
    assert cells(table([answered([0.0], [0.0], tokens=1)]), 0)["with drafts"] == "0.0"


def test_the_table_is_no_wider_than_a_terminal():
    rates = [1234.5] * 3
    pairs = [answered(rates, rates, one.name, first_s=1.5) for one in PROMPTS]
    assert Console(width=300).measure(table(pairs)).maximum <= 80


def test_other_tokens_are_told():
    same, other = measured(1.0), measured(1.0, text=(0, 1, 9))
    assert "the same tokens" in str(Answered("one", [same], [same]))
    assert "other tokens from token 2 on" in str(Answered("one", [same], [other]))
