"""`--help` in sections: every flag stands in one, and none is lost."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from services.cluster.beside import BesideSettings
from services.cluster.flags import Flags
from services.cluster.process import ROLES, ProcessSettings
from services.console.main import app

COMMAND = typer.main.get_command(app)
SECTIONED = ("up", "generate", "bench")


def process_help(role: str) -> tuple[list[str], str]:
    kinds = [ROLES[role].settings_class(), ProcessSettings]
    kinds += [BesideSettings] if role == "verifier" else []
    names = {name for kind in kinds for name in kind.model_fields}
    return sorted(names), Flags(role, "", *kinds).help()


@pytest.mark.parametrize("role", ROLES)
def test_every_flag_of_a_process_stands_in_one_section(role):
    names, shown = process_help(role)
    flags = [line.split()[0].rstrip(",") for line in shown.splitlines() if line.startswith("  --")]
    assert sorted(flags) == sorted("--" + name.replace("_", "-") for name in names)
    assert "\nother:" not in shown
    assert sum(line.endswith(":") and not line.startswith(" ") for line in shown.splitlines()) > 5


@pytest.mark.parametrize("role", ROLES)
def test_sections_name_fields_that_there_are(role):
    kinds = [ROLES[role].settings_class(), ProcessSettings]
    for base in (base for kind in kinds for base in kind.__mro__):
        listed = [name for names in vars(base).get("SECTIONS", {}).values() for name in names]
        assert len(listed) == len(set(listed))
        assert not set(listed) - set(getattr(base, "model_fields", {}))


@pytest.mark.parametrize("name", SECTIONED)
def test_every_flag_of_a_command_stands_in_one_section(name):
    command = COMMAND.commands[name]
    shown = CliRunner().invoke(app, [name, "--help"]).output
    words = [line.split()[0] for line in shown.splitlines() if line.startswith("  --")]
    flags = {word.rstrip(",") for word in words}
    options = [param for param in command.params if param.param_type_name == "option"]
    assert len(words) == len(flags) == len(options) + 1  # `--help` itself
    assert {option.opts[0] for option in options} <= flags
    other = shown.split("\nOther:\n")[1].strip().splitlines()
    assert [line.split()[0] for line in other if line.startswith("--")] == ["--help"]
