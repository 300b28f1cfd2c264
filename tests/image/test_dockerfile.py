"""The images' Dockerfile: what it copies, what it runs, and the check that does the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from k8s.check_image import DOCKERFILE, ROOT, CheckError, closure, import_only, needed, parse

TEXT = DOCKERFILE.read_text()
STAGES = parse(TEXT)


def copied() -> set[str]:
    return {
        source for stage in STAGES.values() for sources, _ in stage.copied for source in sources
    }


def test_what_is_copied_is_let_through_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied()
    assert all((ROOT / source).exists() for source in copied())


def test_every_step_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [run for stage in STAGES.values() for run in stage.runs]
    assert len(runs) == 3
    for run in runs:
        assert re.match(r"make ([a-z-]+) PREFIX=/opt/paceline\b", run), run
        assert run.split()[1] in targets


@pytest.mark.parametrize("target", ["slim", "models"])
def test_the_images_run_paceline_as_a_user_without_rights(target: str) -> None:
    stages = needed(STAGES, target)
    assert [stage.name for stage in stages][-1] == target
    assert f"{target}-packages" in [stage.name for stage in stages]
    assert not stages[-1].runs
    own = TEXT[TEXT.index("AS base") :]
    assert re.search(r"^USER 10001:10001$", own, re.MULTILINE)
    assert 'ENTRYPOINT ["paceline"]' in own
    assert "RUN" not in own


def test_the_bases_are_pinned_and_of_one_python() -> None:
    bases = re.findall(
        r"^ARG (?:BUILD|BASE)=python:(\d+\.\d+\.\d+)-(?:slim-)?bookworm$", TEXT, re.M
    )
    assert len(bases) == 2
    assert len(set(bases)) == 1


def test_the_slim_image_has_what_its_extras_need_and_no_torch() -> None:
    slim = closure("paceline", {"orchestrator", "drafter"})
    assert {"grpcio", "redis", "hiredis", "tokenizers", "uvloop", "prometheus-client"} <= slim
    assert not {"torch", "transformers", "numpy", "pytest", "matplotlib", "ruff"} & slim
    assert {"torch", "transformers", "gguf"} <= closure("paceline", {"models"})


@pytest.mark.parametrize("left_out", ["COPY orchestrator", "COPY services", "COPY protos"])
def test_a_folder_that_is_not_copied_is_missed(left_out: str, tmp_path: Path) -> None:
    lines = [line for line in TEXT.splitlines() if not line.startswith(left_out)]
    assert len(lines) == len(TEXT.splitlines()) - 1
    stages = parse("\n".join(lines))
    with pytest.raises(CheckError):
        import_only("slim", needed(stages, "slim"), tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    stages = parse(TEXT.replace("COPY services services", "COPY service services"))
    with pytest.raises(CheckError, match=r"there is no .*service"):
        import_only("slim", needed(stages, "slim"), tmp_path)


def test_the_image_targets_say_what_they_need() -> None:
    for target in ("image-slim", "image-models", "image-code"):
        done = subprocess.run(
            ["make", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert f"{target}: give PREFIX=FOLDER" in done.stderr
