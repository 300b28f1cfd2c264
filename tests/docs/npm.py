"""Packages of a `package-lock.json`, as of the Node.js client: fetched once, kept in `build`."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.checkout import NODE_CLIENT, check_out
from tests.docs.pages import ROOT
from tests.tools import tool

_OWN = ROOT / NODE_CLIENT
_CACHE = ROOT / "build" / "node" / "cache"
_ORIGIN = "apt install nodejs npm"
_SECONDS = 240
_LOCK_FILE = "package-lock.json"


def environment() -> dict[str, str]:
    """What npm is told: take what was fetched before, and say nothing of news."""
    return {
        **os.environ,
        "npm_config_cache": str(_CACHE),
        "npm_config_prefer_offline": "true",
        "npm_config_update_notifier": "false",
        "npm_config_audit": "false",
        "npm_config_fund": "false",
    }


def client(folder: Path) -> Path:
    """The Node.js client with its packages, in a folder like a checkout."""
    modules = packages()
    made = check_out(folder) / NODE_CLIENT
    (made / "node_modules").symlink_to(modules)
    return made


def packages(wanted: Path = _OWN) -> Path:
    """The folder `node_modules` that the `package-lock.json` of this folder asks for.

    Skips where Node.js or the packages cannot be had, and fails where CI requires them.
    """
    tool("node", _ORIGIN)
    npm = tool("npm", _ORIGIN)
    kept = ROOT / "build" / "node" / wanted.name
    kept.mkdir(parents=True, exist_ok=True)
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_current(wanted, kept):
            _install(npm, wanted, kept)
    return kept / "node_modules"


def _is_current(wanted: Path, kept: Path) -> bool:
    done = kept / "done"
    return done.exists() and done.read_bytes() == (wanted / _LOCK_FILE).read_bytes()


def _install(npm: str, wanted: Path, kept: Path) -> None:
    for name in ("package.json", _LOCK_FILE):
        shutil.copy(wanted / name, kept / name)
    (kept / "done").unlink(missing_ok=True)
    ended = subprocess.run(
        [npm, "ci", "--ignore-scripts"],
        cwd=kept,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        reason = f"npm cannot fetch the packages of {wanted.relative_to(ROOT)}"
        if os.environ.get("PACELINE_REQUIRE_TOOLS") == "1":
            pytest.fail(f"{reason}:\n{ended.stderr}")
        pytest.skip(reason)
    shutil.copy(wanted / _LOCK_FILE, kept / "done")
