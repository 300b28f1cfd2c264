"""Which folders hold a head, as EAGLE-3 has it (Li et al., 2503.01840), in any public layout.

Known by `config.json` alone, without torch: who starts processes asks for it, too. Heads of other
kinds count: they are refused as what they are, and not taken for draft models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.shipped import is_shipped

LLAMA = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "PeagleLlamaForCausalLM")
"""Of SpecForge, ModelOpt and vLLM: the layers are Llama's, whatever `model_type` says."""
PARALLEL = "PEagleDraftModel"
AUTHORS = "LlamaForCausalLM"
"""A model's name, too: of a head there is `draft_vocab_size` beside it."""
_ANY_HEAD = re.compile("eagle(?!.*VL)|dflash|dspark|domino|mtpdraft", re.IGNORECASE)
"""There is a family of models that see, named so, too."""
FLOOR = 0.1
"""Share of its target's own tokens that a head says, at least, if it was read right."""
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
    return KIND in said or named(said) is not None


def named(said: Mapping[str, Any]) -> str | None:
    """The architecture of a head that a configuration names, of EAGLE-3 or another kind."""
    names = said.get("architectures")
    texts = [one for one in names if isinstance(one, str)] if isinstance(names, list) else []
    if AUTHORS in texts and said.get("draft_vocab_size") is not None:
        return AUTHORS
    return next((name for name in texts if _ANY_HEAD.search(name)), None)


def is_known(name: str) -> bool:
    """Whether heads that are named so are EAGLE-3's; NeMo's names have endings of their own."""
    return name in (*LLAMA, PARALLEL, AUTHORS) or name.startswith("LlamaEagle3")


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
