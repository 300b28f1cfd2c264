"""Takes the steps of k8s/Dockerfile without Docker: `make image-check`.

    python k8s/image_check.py slim models

A temporary folder gets the files that the Dockerfile copies, and nothing else; there its targets of
the Makefile run, and each role of an image is started from what they installed. vLLM's image is not
to be had here: of `vllm` what goes on top of it is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from services.runtime.embedded_redis import EmbeddedRedis

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "k8s" / "Dockerfile").read_text()
PREFIX = "/opt/paceline"
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "slim": {
        # It serves once it has a verifier, and says that it is alive before.
        "orchestrator": ("--health-port", "0", "--health-file"),
        "drafter": ("--ngrams", "smollm2-135m-instruct-ngrams", "--ready-file"),
    },
    "models": {"verifier": ("--target", "smollm2-135m-instruct", "--ready-file")},
    "vllm": {},
}
"""The roles that each image is made for, and their flags; the last one takes a file."""
TORCH = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
_START_SECONDS = 300.0
_STOP_SECONDS = 30.0
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "results")


def main(images: Sequence[str]) -> int:
    """Make the images that are named, and start their roles; the exit status."""
    with TemporaryDirectory(prefix="paceline-image-") as name, EmbeddedRedis() as redis:
        folder = Path(name)
        copy(folder / "src")
        make("wheels", folder)
        for image in images:
            make(f"image-{image}", folder)
            place = folder / image / "bin"
            for role, flags in ROLES[image].items():
                start(place / "paceline", role, ("--port", "0", "--redis", redis.url, *flags))
            if image == "slim" and run(place / "python", "-c", TORCH) != "False\n":
                raise SystemExit("image-check: torch is in slim")
            print(f"image-check: {image}: started: {', '.join(ROLES[image]) or 'none'}", flush=True)
    return 0


def copy(folder: Path) -> None:
    """What the Dockerfile copies out of the build context."""
    folder.mkdir()
    for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.MULTILINE):
        *sources, destination = line.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder / destination, ignore=_LEFT_OUT)
            else:
                shutil.copy(ROOT / source, folder / destination)


def make(target: str, folder: Path) -> None:
    """Run the Makefile's target as the Dockerfile does, installing in a folder of that image."""
    [step] = re.findall(rf"^RUN (make {target}\b.*)$", DOCKERFILE, re.MULTILINE)
    command = step.replace(PREFIX, str(folder / target.removeprefix("image-")))
    began = time.monotonic()
    command = command.replace("make image-vllm ", "make image-vllm-beside ")
    run("sh", "-c", f"{command} PYTHON='{sys.executable}'", folder=folder / "src")
    print(f"image-check: {step}: {time.monotonic() - began:.1f} s", flush=True)


def start(program: Path, role: str, flags: Sequence[str]) -> None:
    """Start a role, wait until its file is there, and stop it; SystemExit where it is not."""
    ready = program.parent / f"{role}.ready"
    command = (str(program), role, *flags, str(ready))
    with subprocess.Popen(command, cwd=program.parent, env=environment()) as process:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        served = ready.exists()
        process.terminate()
        status = process.wait(_STOP_SECONDS)
    if not served or status:
        raise SystemExit(f"image-check: paceline {role}: served: {served}, ended with {status}")


def run(*command: str | Path, folder: Path | None = None) -> str:
    """Run to the end; what it printed. SystemExit with its last words where it fails."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"image-check: {command[-1]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def environment() -> dict[str, str]:
    """Ours, without what says where modules are."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    return {name: value for name, value in os.environ.items() if name not in hidden}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
