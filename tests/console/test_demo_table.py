"""What the demo says of its figures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from services.console.demo_table import HEADINGS, Answered, figures_table, verdict


def measured(tokens, seconds, efficiency=1.0, proposed=0, accepted=0, text=None):
    speculation = SimpleNamespace(num_draft_tokens=proposed, num_accepted_draft_tokens=accepted)
    return SimpleNamespace(
        tokens=tokens,
        total_s=seconds,
        block_efficiency=efficiency,
        complete=SimpleNamespace(speculation=speculation),
        token_ids=tuple(range(tokens)) if text is None else text,
    )


def answered(drafted_s, plain_s, all_s, **drafted):
    return Answered(
        "one", measured(60, drafted_s, **drafted), measured(60, plain_s), measured(60, all_s)
    )


def cells(table, row):
    return dict(zip(HEADINGS, [list(column.cells)[row] for column in table.columns], strict=True))


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ((2, 4, 3), "Paceline"),
        ((3, 4, 2), "plain decoding on all cores"),
        ((4, 2, 3), "plain decoding on the verifier's cores"),
    ],
)
def test_the_verdict_names_the_fastest(seconds, fastest):
    assert verdict([answered(*seconds)]).startswith(f"Fastest here: {fastest};")


def test_the_verdict_says_how_much_each_way_gave():
    words = verdict([answered(2, 4, 3)])
    assert "gave 2.00 times" in words
    assert "plain decoding 1.33 times" in words


def test_all_prompts_together_are_total_tokens_over_total_time():
    first = answered(1, 2, 2, efficiency=2.0, proposed=100, accepted=50)
    second = answered(5, 4, 4, efficiency=1.0, proposed=0)
    table = figures_table([first, second])
    both = cells(table, 2)
    assert (both["prompt"], both["tokens"], both["tokens/s"]) == ("all", "120", "20.0")
    assert (both["plain"], both["all cores"]) == ("20.0 1.00×", "20.0 1.00×")
    assert both["efficiency"] == "1.33"
    assert both["kept"] == "50%"
    assert cells(table, 1)["kept"] == "-"


def test_other_tokens_are_shown():
    other = Answered("one", measured(3, 1), measured(3, 1, text=(0, 1, 9)), measured(3, 1))
    assert cells(figures_table([other]), 0)["same"] == "no"
