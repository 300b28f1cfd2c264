"""The peers of a bench, started and ready to be asked."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.options import BenchOptions
from bench.peers.options import LLAMA, TRANSFORMERS, VLLM
from bench.peers.process import PeerProcess, PeerSpec, peer_process
from bench.prompts import BenchPrompt
from bench.runner import Configuration
from services.common.engine.loading import locate
from services.common.errors import StartError
from services.console.figures import Measured
from services.console.tether import available_cores


@dataclass(frozen=True, slots=True)
class Child:
    """One process, the names of the peers that it answers for, and its cores in words."""

    spec: PeerSpec
    ways: tuple[str, ...]
    place: str
    exact: bool


@asynccontextmanager
async def served_peers(
    options: BenchOptions, prompts: Sequence[BenchPrompt], report: Callable[[str], None]
) -> AsyncIterator[list[Configuration]]:
    """Every peer as a configuration. Raises StartError when one does not start."""
    made: list[Configuration] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-peers-")))
        for child in children(options, prompts):
            peer = await stack.enter_async_context(peer_process(child.spec, folder))
            report(f"{child.spec.name} is ready: {peer.about}")
            made += [_configuration(child, way, peer) for way in child.ways]
        yield made


def children(options: BenchOptions, prompts: Sequence[BenchPrompt]) -> Iterator[Child]:
    """The processes that are needed: those of transformers answer in several ways."""
    asked = options.peers
    for place, cpus in _places(options):
        common = {"threads": len(cpus), "cpus": list(cpus), "dtype": options.dtype}
        engine = common | {
            "max_context": context(max(len(one.token_ids) for one in prompts), options.max_tokens),
            "concurrency": max(options.concurrency),
        }
        if ways := tuple(name for name in TRANSFORMERS if name in asked.names):
            yield _transformers(options, ways, place, common)
        for way in VLLM:
            if way in asked.names:
                yield _vllm(options, way, place, engine)
        if LLAMA in asked.names:
            yield _llama(options, place, engine)


def context(prompt_tokens: int, max_tokens: int) -> int:
    """Tokens of the longest text, rounded up to a power of two.

    vLLM compiles anew for another length: most runs then share one.
    """
    return int(1 << (prompt_tokens + max_tokens).bit_length())


def _places(options: BenchOptions) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Cores in words, and which; once, where the verifier has all."""
    cores = {"verifier": options.cores.verifiers[0], "all": available_cores()}
    seen = set()
    for place in options.peers.places:
        if cores[place] not in seen:
            seen.add(cores[place])
            yield place, cores[place]


def _transformers(
    options: BenchOptions, ways: tuple[str, ...], place: str, common: Mapping[str, Any]
) -> Child:
    drafts = "assisted" in ways
    settings = {
        **common,
        "model": options.target,
        "draft": options.draft if drafts else None,
        "draft_dtype": options.draft_dtype or options.dtype,
    }
    name = _name("transformers", place)
    spec = PeerSpec(name, sys.executable, "bench.peers.transformers_child", settings)
    return Child(spec, ways, place, exact=_comparable(options))


def _vllm(options: BenchOptions, way: str, place: str, engine: Mapping[str, Any]) -> Child:
    from bench.thinned import source_folder

    assert options.peers.vllm_python is not None
    folder = source_folder(options.target, options.dtype)
    settings = {**engine, "model": str(folder), "ngram": way == "vllm-ngram"}
    spec = PeerSpec(
        _name(way, place), options.peers.vllm_python, "bench.peers.vllm_child", settings
    )
    return Child(spec, (way,), place, exact=_comparable(options))


def _llama(options: BenchOptions, place: str, engine: Mapping[str, Any]) -> Child:
    model = locate(options.target)
    if model.suffix != ".gguf":
        raise StartError(f"--peers: {LLAMA} runs .gguf files, and {options.target} is none")
    settings = {**engine, "model": str(model), "command": options.peers.llama_server}
    spec = PeerSpec(_name(LLAMA, place), sys.executable, "bench.peers.llama_child", settings)
    return Child(spec, (LLAMA,), place, exact=False)


def _comparable(options: BenchOptions) -> bool:
    """Whether a peer should write what we do: greedily, in float32."""
    return options.dtype == "float32" and options.temperature == 0


def _configuration(child: Child, way: str, peer: PeerProcess) -> Configuration:
    return Configuration(
        name=_name(way, child.place),
        cores=f"{child.spec.settings['threads']} ({peer.about})",
        exact=child.exact,
        answer=partial(_answer, peer, way),
        baseline=True,
    )


async def _answer(
    peer: PeerProcess, way: str, prompt: BenchPrompt, options: Mapping[str, Any]
) -> Measured:
    return await peer.answer(way, prompt.token_ids, options)


def _name(name: str, place: str) -> str:
    return f"{name}, all cores" if place == "all" else name
