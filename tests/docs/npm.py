"""The packages of the Node.js client: fetched once per checkout, kept in `build`."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.checkout import NODE_CLIENT, check_out
from tests.docs.pages import ROOT
from tests.tools import tool

_KEPT = ROOT / "build" / "node"
_ORIGIN = "apt install nodejs npm"
_SECONDS = 240


def environment() -> dict[str, str]:
    """What npm is told: take what was fetched before, and say nothing of news."""
    return {
        **os.environ,
        "npm_config_cache": str(_KEPT / "cache"),
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


def packages() -> Path:
    """The folder `node_modules` that `package-lock.json` asks for.

    Skips where Node.js or the packages cannot be had, and fails where CI requires them.
    """
    tool("node", _ORIGIN)
    npm = tool("npm", _ORIGIN)
    _KEPT.mkdir(parents=True, exist_ok=True)
    with open(_KEPT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_current():
            _install(npm)
    return _KEPT / "node_modules"


def _is_current() -> bool:
    done = _KEPT / "done"
    return done.exists() and done.read_bytes() == _lock_file().read_bytes()


def _install(npm: str) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / NODE_CLIENT / name, _KEPT / name)
    (_KEPT / "done").unlink(missing_ok=True)
    ended = subprocess.run(
        [npm, "ci", "--ignore-scripts"],
        cwd=_KEPT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        reason = "npm cannot fetch the packages of the Node.js client"
        if os.environ.get("PACELINE_REQUIRE_TOOLS") == "1":
            pytest.fail(f"{reason}:\n{ended.stderr}")
        pytest.skip(reason)
    shutil.copy(_lock_file(), _KEPT / "done")


def _lock_file() -> Path:
    return ROOT / NODE_CLIENT / "package-lock.json"
