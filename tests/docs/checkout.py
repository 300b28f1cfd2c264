"""A folder that looks like a checkout, in which examples may write."""

import shutil
import sys
from pathlib import Path

from tests.docs.pages import ROOT

NODE_CLIENT = Path("examples", "node")
_OWN = ("examples", "build", ".git", ".venv", ".certs")
"""What the copy has for itself."""


def check_out(folder: Path) -> Path:
    """Links to what is in the repository, the environment of this run as `.venv`.

    `make` finds that environment finished, and installs nothing.
    """
    folder.mkdir(exist_ok=True)
    for entry in ROOT.iterdir():
        if entry.name not in _OWN:
            (folder / entry.name).symlink_to(entry)
    shutil.copytree(
        ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("node_modules")
    )
    environment = folder / ".venv"
    environment.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != ".setup-done":
            (environment / entry.name).symlink_to(entry)
    (environment / ".setup-done").touch()
    return folder
