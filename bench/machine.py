"""What the figures were measured on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from services.console.tether import available_cores

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
