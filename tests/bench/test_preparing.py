"""What idle moments bring, counted on a clock of draft steps."""

import pytest

from research.preparing import Answer, Pace, Timed, measure, parser, show
from services.contract.types import OpenDraft, ResolvedSampling, VerifyMode
from services.drafter.methods.model.branches import PrepareRules
from tests.models import tiny_model_folder
from tests.services.test_drafter_branches import Clear, choices

PACE = Pace(window=3, waits=True, verify=8.0, row=0.0, hop=0.1)


def tally(truth, ranks, rules):
    timed = Timed(Clear(), rules, PACE.row)
    law = ResolvedSampling(max_tokens=len(truth))
    timed.core.handle(0, OpenDraft("s", 1, (1, 2), (), VerifyMode.GREEDY, law, 7, PACE.window))
    while not timed.tail:
        timed.step()
    return Answer(timed, PACE, truth, ranks).decode()


def text_of(ranks):
    text = [1, 2]
    for rank in ranks:
        text.append(choices(Clear(), text)[rank])
    return text[2:]


def test_a_drafter_that_is_always_right_takes_fewer_rounds_when_it_prepares():
    """Without, a round finds one token of three: the others went with the round before."""
    ranks = [0] * 12
    off, on = (tally(text_of(ranks), ranks, rules) for rules in (None, PrepareRules(16, 8)))
    assert off["rejected"] == on["rejected"] == off["late"] == on["late"] == 0
    assert off["rounds"] == 6
    assert on["rounds"] == 5


def test_what_was_its_second_choice_is_waited_for_only_without_preparing():
    ranks = [1] * 12
    truth = text_of(ranks)
    off, on = (tally(truth, ranks, rules) for rules in (None, PrepareRules(16, 8)))
    assert off["rounds"] == on["rounds"] == 12
    assert off["choice 1"] == off["rejected"] == 12
    assert off["ready, rejected"] == 0
    assert on["ready, rejected"] == 11
    assert off["time"] - on["time"] == pytest.approx(11 * 900, abs=1000), "a step less the way"


def test_the_report_has_a_line_for_each_pace(tmp_path):
    folder = str(tiny_model_folder(tmp_path / "m", "llama", max_position_embeddings=8192))
    asked = ["--model", folder, "--draft", folder, "--prompts", "2", "--tokens", "6"]
    figures = measure(parser().parse_args([*asked, "--windows", "2", "3"]))
    assert len(show(figures).splitlines()) == 1 + 4
    assert {row["rejected"] for row in figures["rows"]} == {0.0}
    assert all(row["gain"] >= 1.0 for row in figures["rows"])
