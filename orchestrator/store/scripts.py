"""The Lua transitions, one file each, by EVALSHA."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAMES = (
    "create",
    "acquire",
    "attend",
    "commit",
    "finish",
    "pause",
    "abort",
    "look",
    "get",
    "rounds",
    "renew",
    "seed",
    "probe",
)


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua source and the digest the server knows it by."""

    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of that name, the prelude before it."""
    folder = files(__package__) / "lua"
    source = (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()
    # EVALSHA addresses scripts by SHA-1; no security rests on it.
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
