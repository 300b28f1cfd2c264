"""Which peers a bench sets beside our own configurations."""

from __future__ import annotations

import shutil
from typing import Literal

from services.contract.errors import StartError
from services.engine.checkpoint.heads import is_head
from services.runtime.options import Words, option, options

TRANSFORMERS = ("transformers", "assisted", "lookup")
VLLM = ("vllm", "vllm-ngram")
LLAMA = ("llama.cpp", "llama.cpp-ngram")
PEERS = (*TRANSFORMERS, *VLLM, *LLAMA)
PLACES = ("verifier", "all")
AUTO = "auto"
FORMATS = ("float32", "bfloat16")
"""What a trial tries. Other formats have to be asked for: float16 is not one that CPUs are fast in,
and may overflow."""


@options
class PeerOptions:
    """Peers by name, and the cores they run on: those of the verifier, or all, or each in turn."""

    names: Words = option(
        "Set beside: transformers, assisted (with --draft), lookup, vllm, vllm-ngram, llama.cpp, "
        "llama.cpp-ngram.",
        "",
        section="Peers",
        flag="peers",
    )
    places: Words = option(
        "Where they run: verifier (its cores), all, or both.", "verifier", flag="peer-cores"
    )
    vllm_python: str | None = option("Python of an environment that holds vLLM.", None)
    llama_server: str | None = option(
        "The command llama-server of llama.cpp; make setup-llama makes one in .venv-llama/bin.",
        None,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "Number format of peers; auto: for each the one that a short trial finds fastest.",
        AUTO,
        flag="peer-dtype",
    )

    def check(self, draft: str | None) -> None:
        """Raises StartError for an unknown peer, and for one that lacks what it needs."""
        for name in self.names:
            if name not in PEERS:
                raise StartError(f"--peers: {name!r} is not one of {', '.join(PEERS)}")
        for place in self.places:
            if place not in PLACES:
                raise StartError(f"--peer-cores: {place!r} is not one of {', '.join(PLACES)}")
        if "assisted" in self.names and (draft is None or is_head(draft)):
            raise StartError("--peers: assisted needs a model that drafts, --draft")
        if not set(VLLM).isdisjoint(self.names):
            _require("vllm", "--vllm-python", self.vllm_python)
        if not set(LLAMA).isdisjoint(self.names):
            _require("llama.cpp", "--llama-server", self.llama_server)


def _require(peer: str, flag: str, command: str | None) -> None:
    if command is None:
        raise StartError(f"--peers: {peer} needs {flag}")
    if shutil.which(command) is None:
        raise StartError(f"{flag}: {command} is not a command that can be run")
