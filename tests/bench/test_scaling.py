"""What was recorded of the scalers' expressions: its file, its table, the page that shows it."""

import json
from pathlib import Path

import pytest

from research.scaling.__main__ import main
from research.scaling.manifests import queries
from research.scaling.phases import Phase, parse_phases
from research.scaling.recording import Recording, Signal, read_recording, table, write_recording
from services.contract.errors import StartError

RECORDED = Path(__file__).parents[2] / "research" / "data" / "scaling.json"
RECORDING = Recording(
    "command",
    "now",
    {"tokens": 1},
    {"tier": 1},
    (0.0, 5.0, 60.0, 65.0, 120.0),
    (0.0, 1.0, 2.0, 3.0, None),
    {"tier": {"load": Signal("load", (0.0, 9.0, 9.0, 25.4, None))}},
)


def test_a_recording_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "scaling.json"
    write_recording(path, RECORDING)
    assert read_recording(path) == RECORDING
    assert json.loads(path.read_text())["signals"]["tier"]["load"]["values"][1] == 9.0


def test_a_file_that_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "scaling.json"
    with pytest.raises(StartError, match="cannot be read"):
        read_recording(path)
    for text in ("[]", "{", '{"signals": {}}'):
        path.write_text(text)
        with pytest.raises(StartError, match="no recording"):
            read_recording(path)


def test_a_table_has_a_line_now_and_then():
    assert [line.split() for line in table(RECORDING, 60).splitlines()] == [
        ["time", "sessions", "load"],
        ["0:00", "0", "0"],
        ["1:00", "2", "9"],
        ["2:00", "–", "–"],
    ]
    assert table(RECORDING, 65).splitlines()[-1].split() == ["1:05", "3", "25"]


def test_phases_are_read_and_others_refused():
    assert parse_phases("0:30,8:1.5") == (Phase(0, 30), Phase(8, 1.5))
    for wrong in ("", "8", "8:", "-1:3", "2:0", "2:inf", "a:1"):
        with pytest.raises(StartError, match="--phases"):
            parse_phases(wrong)


def test_the_shipped_recording_is_of_the_shipped_expressions():
    recorded = read_recording(RECORDED).signals
    asked = {tier: {name: one.query for name, one in own.items()} for tier, own in recorded.items()}
    assert asked == queries()


def test_the_shipped_recording_holds_a_value_at_every_moment():
    shipped = read_recording(RECORDED)
    for triggers in shipped.signals.values():
        for signal in triggers.values():
            assert len(signal.values) == len(shipped.times)
            assert None not in signal.values


def test_the_command_says_in_a_line_what_it_cannot_read(tmp_path, capsys):
    assert main(["show", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_shows_what_the_command_says_of_the_shipped_recording(capsys):
    assert main(["show", str(RECORDED)]) == 0
    page = (RECORDED.parents[2] / "docs" / "scaling.md").read_text()
    assert capsys.readouterr().out in page
    assert read_recording(RECORDED).command in page
