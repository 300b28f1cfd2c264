"""`--help` in sections: every flag stands in one, and none is lost."""

from __future__ import annotations

import pytest

from services.console.main import COMMANDS, PROCESSES, flags_of
from tests.console.typed import paceline

SECTIONED = (*PROCESSES, "up", "generate", "bench")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_stands_in_one_section(name):
    done = paceline(name, "--help")
    assert done.exit_code == 0
    told, other = done.stdout.split("\nOther:\n")
    lines = "\n".join(told.split(":\n")[1:]).splitlines()
    words = [line.split()[0].rstrip(",") for line in lines if line[:4].strip() == "--"]
    assert sorted(words) == sorted(on for on in flags_of(name).known if on.startswith("--"))
    assert other.split()[0] == ("--help," if name in PROCESSES else "--help")


@pytest.mark.parametrize("name", SECTIONED)
def test_a_command_with_many_flags_shows_them_in_sections_with_titles(name):
    sections = flags_of(name).titles
    assert len(sections) > 3
    assert "Flags" not in sections
