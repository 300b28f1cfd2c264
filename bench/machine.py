"""What the figures were measured on."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from services.cluster.tether import available_cores
from services.runtime.options import typed

PACKAGES = ("paceline", "torch", "transformers", "grpcio", "redis")


def machine() -> dict[str, object]:
    """Processor, cores, memory and versions, by name."""
    return {
        "cpu": _cpu(),
        "cores": len(available_cores()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "load_average": [round(load, 2) for load in psutil.getloadavg()],
    }


def origin() -> dict[str, object]:
    """When figures were taken, by which command, and from which commit."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": typed(),
        "commit": _commit(),
    }


def _commit() -> str:
    """Of the checkout that this runs from; `+` = with changes that are not in it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
