"""A session's rounds on a timeline: from the server's figures to lanes, pages and files."""

from __future__ import annotations

import io
import json
import re

import pytest
from paceline import Method, Origin, RoundStats, SessionRound
from rich.console import Console

from services.console.timeline.page import page
from services.console.timeline.records import Record, Trace, load, save
from services.console.timeline.rounds import Stretch, timeline
from services.console.timeline.terminal import render, summary
from services.contract.errors import StartError

ACCEPTED, RECOVERED, BONUS = Origin.ACCEPTED, Origin.RECOVERED, Origin.BONUS
START = 1_700_000_000_000.0


def told(
    index, started, drafted, accepted, pieces, origins, rejected=(), unjudged=(), offset=0, **stats
) -> SessionRound:
    usual = {"draft_ms": 4.0 * drafted, "verify_ms": 20.0, "queue_ms": 2.0, "round_ms": 25.0}
    figures = RoundStats(
        index=index,
        epoch=1,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        emitted_tokens=len(pieces),
        batch_size=2,
        drafter="d1" if drafted else "",
        verifier="v1",
        rejection_sample_method=Method.GREEDY,
        **{**usual, **stats},
    )
    ids = tuple(range(len(pieces)))
    return SessionRound(
        1, offset, START + started, figures, ids, pieces, origins, rejected, unjudged
    )


ROUNDS = (
    told(1, 0.0, 0, 0, ("The",), (BONUS,)),
    told(
        2,
        26.0,
        3,
        2,
        (" quick", " </script>", " fox"),
        (ACCEPTED, ACCEPTED, RECOVERED),
        rejected=(" dog",),
        unjudged=(" barks", " at"),
        offset=1,
    ),
    told(3, 60.0, 1, 1, (" runs", "\n"), (ACCEPTED, BONUS), offset=4),
)


def trace(rounds=ROUNDS, **about) -> Trace:
    return Trace("s-1", "finished", tuple(Record.of(one) for one in rounds), **about)


def test_the_parts_of_a_round_fill_it():
    for one in timeline(trace()).rounds:
        assert one.whole.start <= one.queue.start <= one.queue.end == one.verify.start
        assert one.verify.end <= one.whole.end
        assert (one.queue.length, one.verify.length) == (pytest.approx(2), pytest.approx(20))


def test_drafting_ends_where_its_step_begins_and_nothing_is_before_the_zero():
    late = timeline(trace(ROUNDS[1:]))
    assert late.rounds[0].draft == Stretch(3.5, 15.5)
    assert (late.rounds[0].whole.start, late.rounds[0].verify.start) == (12.0, 15.5)
    assert timeline(trace()).rounds[0].draft is None


def test_what_was_drafted_beyond_a_rejection_was_drafted_meanwhile():
    one = timeline(trace()).rounds[1]
    assert one.void == Stretch(one.whole.start, one.whole.start + 8.0)
    assert timeline(trace()).rounds[2].void is None


def test_figures_that_do_not_fit_are_cut_to_the_round():
    odd = told(1, 0.0, 0, 0, ("a",), (BONUS,), verify_ms=30.0, queue_ms=9.0)
    [one] = timeline(trace((odd,))).rounds
    assert (one.verify.length, one.queue.length) == (25.0, 0.0)


def test_every_token_has_its_fate():
    tokens = [token for one in timeline(trace()).rounds for token in one.tokens]
    assert [(token.text, token.fate) for token in tokens] == [
        ("The", "bonus"),
        (" quick", "accepted"),
        (" </script>", "accepted"),
        (" fox", "recovered"),
        (" dog", "rejected"),
        (" barks", "unjudged"),
        (" at", "unjudged"),
        (" runs", "accepted"),
        ("\n", "bonus"),
    ]


def test_the_sums_are_those_of_the_rounds():
    line = timeline(trace())
    assert (line.tokens, line.drafted, line.accepted, line.unjudged) == (6, 4, 3, 2)
    assert line.drafting_ms == pytest.approx(12 + 8 + 4)
    # The second block's drafting overlaps the first round's verifying, 2.5 ms after its start.
    assert 0 < line.hidden_ms < line.drafting_ms
    said = summary(line)
    assert "3 rounds" in said
    assert "3 of 4 draft tokens accepted" in said
    assert "2 more thrown away" in said


def test_a_session_without_a_round_has_an_empty_timeline():
    line = timeline(trace(()))
    assert (line.end, line.rounds) == (0.0, ())
    assert "0 rounds" in printed(line)
    assert data_of(page(line)) == {"rounds": [], "end": 0.0}


def printed(line, last=0, width=100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(render(line, console, last))
    return console.file.getvalue()


def test_without_colours_marks_tell_the_fates():
    shown = printed(timeline(trace()))
    assert "+ quick+ </script>~ fox- dog? barks? at" in shown
    assert "+ runs⏎" in shown


def test_lanes_show_drafting_beside_verifying():
    lines = printed(timeline(trace())).splitlines()
    [drafting] = [line for line in lines if line.startswith("drafter")]
    [verifying] = [line for line in lines if line.startswith("verifier")]
    both = [a == b == "█" for a, b in zip(drafting[12:], verifying[12:], strict=False)]
    assert any(both)
    assert not any(line.startswith("on the way") for line in lines)
    assert not any({"queue", "way"} <= {*line.split()} for line in lines)
    assert "░" in drafting
    [client] = [line for line in lines if line.startswith("client")]
    assert [mark for mark in client[12:] if mark != " "] == ["1", "3", "2"]


def test_a_long_timeline_goes_on_below_and_only_the_last_rounds_are_shown():
    many = [told(n, 30.0 * n, 0, 0, ("x",), (BONUS,), offset=n) for n in range(40)]
    line = timeline(trace(many))
    assert printed(line).count("verifier ") > 4
    few = printed(line, last=5)
    assert "The last 5 rounds" in few
    assert few.count("~") == printed(line, last=5).count("~")
    assert [row.split()[0] for row in few.splitlines()[-5:]] == ["35", "36", "37", "38", "39"]


def data_of(html: str) -> dict:
    [data] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html)
    return json.loads(data)


def test_a_page_holds_everything_and_needs_nothing():
    html = page(timeline(trace()))
    data = data_of(html)
    assert [one["n"] for one in data["rounds"]] == [1, 2, 3]
    assert data["rounds"][1]["tokens"][1] == [" </script>", "accepted"]
    assert data["rounds"][1]["draft"] == [17.5, 29.5]
    assert data["rounds"][0]["draft"] is None
    assert "%%" not in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)


def test_a_page_takes_no_orders_from_a_session():
    line = timeline(Trace("<b>&%%DATA%%", "", trace().records))
    html = page(line)
    assert "<b>&" not in html
    assert "&lt;b&gt;&amp;%%DATA%%" in html


def test_a_trace_file_is_read_as_it_was_written(tmp_path):
    save(tmp_path / "t.jsonl", trace())
    assert load(tmp_path / "t.jsonl") == trace()


@pytest.mark.parametrize("cut", [2, 30, 400])
def test_a_trace_file_that_is_cut_short_shows_what_it_has(tmp_path, cut):
    file = tmp_path / "t.jsonl"
    save(file, trace())
    file.write_bytes(file.read_bytes()[:-cut])
    read = load(file)
    assert read.cut
    assert read.records == trace().records[: len(read.records)]
    assert len(read.records) < 3
    assert "cut short" in printed(timeline(read))
    assert "cut short" in page(timeline(read))


FIGURES = {
    "index": 2,
    "epoch": 1,
    "draft_tokens": 3,
    "accepted_tokens": 2,
    "emitted_tokens": 3,
    "draft_ms": 12.0,
    "verify_ms": 20.0,
    "queue_ms": 2.0,
    "round_ms": 25.0,
    "batch_size": 2,
    "drafter": "d1",
    "verifier": "v1",
    "rejection_sample_method": "greedy",
}
"""Of a round, in a trace file of the first version."""


def of_figures(tmp_path, **changed) -> Trace:
    about = {"term": 1, "offset": 1, "started_unix_ms": START, "stats": {**FIGURES, **changed}}
    head = {"kind": "paceline trace", "version": 1, "session": "s", "status": "finished"}
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(head)}\n{json.dumps(about)}\n")
    return load(tmp_path / "t.jsonl")


def test_a_trace_file_of_the_first_version_is_read(tmp_path):
    [record] = of_figures(tmp_path).records
    assert record.stats == RoundStats(**{**FIGURES, "rejection_sample_method": Method.GREEDY})


def test_a_rule_of_a_later_version_hides_no_round(tmp_path):
    for rule in ("later", ["later"], None):
        [record] = of_figures(tmp_path, rejection_sample_method=rule).records
        assert record.stats.rejection_sample_method is Method.AUTO


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_a_figure_that_cannot_be_is_where_a_trace_file_ends(tmp_path, value):
    for name in ("draft_ms", "emitted_tokens"):
        assert of_figures(tmp_path, **{name: value}) == Trace("s", "finished", (), cut=True)


@pytest.mark.parametrize("content", ["", "[]", "{}", "text", '{"kind": "other"}', "\x00\xff"])
def test_what_is_no_trace_file_is_refused_in_one_line(tmp_path, content):
    file = tmp_path / "t.jsonl"
    file.write_text(content)
    with pytest.raises(StartError, match=r"--file: .*t\.jsonl is no trace file"):
        load(file)


def test_a_trace_file_of_another_version_is_refused(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"kind": "paceline trace", "version": 9, "session": "s"}\n')
    with pytest.raises(StartError, match="has version 9, this reads 1"):
        load(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StartError, match=r"--file: cannot read .*: No such file"):
        load(tmp_path / "none")
    with pytest.raises(StartError, match="--save: cannot write"):
        save(tmp_path / "no" / "where", trace())
