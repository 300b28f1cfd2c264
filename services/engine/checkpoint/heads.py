"""Which folders hold an EAGLE-3 head (Li et al., 2503.01840), in either public layout.

Known by `config.json` alone, without torch: who starts processes asks for it, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.shipped import is_shipped

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "PeagleLlamaForCausalLM")
"""What SpecForge and its relatives name heads in `architectures`."""
KIND = "speculators_model_type"
"""What speculators name the kind of a head in."""
_CONFIG = "config.json"
_CONFIG_BYTES = 1 << 20


def is_head(name: str | Path | None) -> bool:
    """Whether a name stands for a head that is on this machine, whole or broken."""
    if name is None:
        return False
    if is_shipped("heads", str(name)):
        return True
    folder = Path(name).expanduser()
    try:
        file = (folder / _CONFIG).stat()
    except (OSError, ValueError):
        return False
    return _describes_head(folder, file.st_mtime_ns, file.st_size)


@lru_cache(maxsize=8)
def _describes_head(folder: Path, changed: int, size: int) -> bool:  # noqa: ARG001
    """Whoever starts processes asks often, and the file is read once as long as it stays."""
    try:
        said = read_json(folder)
    except StartError:
        return False
    return KIND in said or is_named(said)


def is_named(said: Mapping[str, Any]) -> bool:
    """Whether a configuration names a head's architecture."""
    names = said.get("architectures")
    return isinstance(names, list) and any(name in ARCHITECTURES for name in names)


def read_json(folder: Path) -> dict[str, Any]:
    """A folder's configuration; StartError, one line, where there is none."""
    file = folder / _CONFIG
    try:
        with file.open("rb") as opened:
            content = opened.read(_CONFIG_BYTES + 1)
        said = json.loads(content) if len(content) <= _CONFIG_BYTES else None
    except OSError as error:
        raise StartError(f"{_CONFIG}: not there or not readable") from error
    except (ValueError, RecursionError) as error:
        raise StartError(f"{_CONFIG}: no JSON") from error
    if not isinstance(said, dict):
        raise StartError(f"{_CONFIG}: no configuration")
    return said
