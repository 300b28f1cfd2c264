"""The journal of an unfinished run."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench import main
from bench.journal import Journal
from bench.options import BenchOptions
from bench.prompts import BenchPrompt
from bench.runner import Schedule
from services.contract.errors import StartError
from tests.bench.test_figures import trial
from tests.console.events import stats

SETTINGS = {"--max-tokens": 64, "--peers": ("lookup",), "--draft": None}


def journal(path: Path, **changed: object) -> Journal:
    return Journal(path, {**SETTINGS, **changed})


def written(path: Path, *trials) -> None:
    new = journal(path)
    assert new.trials == []
    for one in trials:
        new.add(one)


def test_trials_come_back_as_they_were_apart_from_their_texts(tmp_path):
    done = replace(trial("eager", 1, 2.0, rounds=[stats(3, 1)]), level=4, cpu_s={"client": 0.5})
    written(tmp_path / "j", done, trial("plain", 0, 1.0))
    back, other = journal(tmp_path / "j").trials
    [result], [kept] = done.results, back.results
    assert kept == replace(result, complete=replace(result.complete, text=""))
    assert back.prompts == (replace(done.prompts[0], text=""),)
    assert (back.key, back.wall_s, back.cpu_s) == (done.key, 2.0, {"client": 0.5})
    assert other.configuration == "plain"


def test_a_line_that_was_cut_off_is_left_out_and_written_over(tmp_path):
    path = tmp_path / "j"
    written(path, trial("plain", 0, 1.0), trial("eager", 0, 1.0))
    path.write_text(path.read_text()[:-40])
    second = journal(path)
    assert [one.configuration for one in second.trials] == ["plain"]
    second.add(trial("fixed", 0, 1.0))
    assert [one.configuration for one in journal(path).trials] == ["plain", "fixed"]


def test_another_setting_is_named_in_one_line(tmp_path):
    written(tmp_path / "j")
    with pytest.raises(StartError) as caught:
        _ = journal(tmp_path / "j", **{"--max-tokens": 48}).trials
    assert str(caught.value).endswith("was made with --max-tokens 64, this run has 48")
    with pytest.raises(StartError, match="made with --peers lookup, this run has nothing"):
        _ = journal(tmp_path / "j", **{"--peers": ()}).trials


@pytest.mark.parametrize("content", ["no json\n", "[1]\n", '{"settings": {}}\nbroken\n', "[1, 2"])
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "j"
    path.write_text(content)
    with pytest.raises(StartError, match="is not a journal of a bench"):
        _ = Journal(path, {}).trials
    assert path.read_text() == content


def test_a_journal_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(StartError, match="--resume: "):
        _ = journal(tmp_path / "nowhere" / "j").trials
    with pytest.raises(StartError, match="--resume: "):
        _ = journal(tmp_path).trials


def test_a_run_with_other_prompts_or_tokens_does_not_go_on(tmp_path, capsys):
    path = tmp_path / "j"
    options = BenchOptions(target="m", resume=path)
    schedule = Schedule([BenchPrompt(1, "qa", "one")])
    Journal(path, main.journal_settings(options, schedule)).trials  # noqa: B018
    other = Schedule([BenchPrompt(1, "qa", "two")])
    with pytest.raises(StartError, match="made with --set"):
        main._take_up(options, other, main.Progress())
    main._take_up(replace(options, repeats=7, out=tmp_path), schedule, main.Progress())
    with pytest.raises(StartError, match="made with --seed 1, this run has 2"):
        main._take_up(replace(options, seed=2), schedule, main.Progress())
