"""Hooks, hosted CI and `make help` call what there is, and leave nothing out."""

from __future__ import annotations

import ast
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
RUN_NO_CODE = ("AutoConfig", "AutoTokenizer", "AutoModel", "AutoProcessor")
"""So begin transformers' classes that run the code of a model's folder, or ask whether they may."""
MOST_TARGETS = 12
"""So many are read at a glance."""


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    [lines] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines.splitlines()]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):(?!=)", re.sub(r"(?m)^.*:=.*$", "", MAKEFILE), re.MULTILINE))


def helped() -> tuple[list[str], str]:
    """The targets that `make help` lists, and what it says below."""
    said = subprocess.run(
        ("make", "--no-print-directory", "help"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed, _, below = said.partition("\n\n")
    return re.findall(r"^  make ([a-z-]+) ", listed, re.MULTILINE), below


@pytest.mark.parametrize("hook", HOOKS["repos"][0]["hooks"], ids=lambda hook: str(hook["id"]))
def test_a_hook_runs_a_command_of_make_check_and_downloads_nothing(hook: dict[str, Any]):
    assert [repo["repo"] for repo in HOOKS["repos"]] == ["local"]
    assert hook["language"] == "system"
    assert hook["entry"] in recipe("check")


def test_hosted_ci_runs_what_everybody_can_run_and_nothing_else():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    [job] = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert f"ARG BUILD={job['container']}\n" in (ROOT / "k8s" / "Dockerfile").read_text()


def test_make_help_lists_about_ten_targets_and_names_the_others():
    listed, below = helped()
    assert len(listed) <= MOST_TARGETS
    assert sorted(targets() - set(listed) - set(re.findall(r"[a-z-]+", below))) == []


def sources() -> list[str]:
    """Every file with code in it."""
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def unguarded(source: str) -> list[str]:
    """The calls in some code that read a model, and do not say that none of its code may run."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    reading = [
        one for one in calls if re.search(r"\.from_(pretrained|config)$", ast.unparse(one.func))
    ]
    said = ("trust_remote_code", "False")
    return [
        ast.unparse(one)
        for one in reading
        if ast.unparse(one.func).split(".")[-2].startswith(RUN_NO_CODE)
        and said not in {(given.arg, ast.unparse(given.value)) for given in one.keywords}
    ]


def test_no_model_folder_runs_its_own_code_or_has_it_asked_for():
    assert unguarded("AutoModelForCausalLM.from_pretrained(x)")
    assert unguarded("t.AutoTokenizer.from_pretrained(x, trust_remote_code=True)")
    assert unguarded("GenerationConfig.from_pretrained(x)") == []
    found = {name: unguarded((ROOT / name).read_text("utf-8")) for name in sources()}
    assert {name: calls for name, calls in found.items() if calls} == {}
