"""The peers of a bench, started and ready to be asked."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.options import BenchOptions
from bench.peers.options import AUTO, FORMATS, LLAMA, PEERS, TRANSFORMERS, VLLM
from bench.peers.process import PeerProcess, PeerSpec, peer_process
from bench.prompts import BenchPrompt
from bench.runner import Configuration
from services.cluster.figures import Measured
from services.contract.errors import StartError
from services.engine.checkpoint.files import locate
from services.runtime.affinity import available_cores

Formats = Mapping[str, str]
"""Number formats of peers, by the names of their configurations."""

TRIAL: Mapping[str, Any] = {"max_tokens": 24, "temperature": 0.0, "top_p": 1.0}
"""What a peer is asked in each number format, to see in which it is fastest."""
TRIES = 2
AS_STORED = "its file's"


@asynccontextmanager
async def served_peers(
    options: BenchOptions,
    prompts: Sequence[BenchPrompt],
    report: Callable[[str], None],
    known: Formats | None = None,
) -> AsyncIterator[list[Configuration]]:
    """Every peer as a configuration, the last prompt being for warming up.

    `known`: formats that are decided already. Raises StartError when a peer does not start.
    """
    made: list[Configuration] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-peers-")))
        formats = await fastest_formats(options, prompts, report, folder, known or {})
        for child in children(options, prompts, formats):
            peer = await stack.enter_async_context(peer_process(child, folder))
            report(f"{child.name} is ready in {child.dtype}: {peer.about}")
            made += [_configuration(child, name, peer) for name in child.ways]
        yield sorted(made, key=lambda one: _names(options).index(one.name))


async def fastest_formats(
    options: BenchOptions,
    prompts: Sequence[BenchPrompt],
    report: Callable[[str], None],
    folder: Path,
    known: Formats,
) -> dict[str, str]:
    """The format that each peer is fastest in, by a short trial; the one asked for, if one is.

    A format that a processor lacks falls back to slow code in one library and not in another, so
    none is taken for granted. A peer that starts in none is left its first, to say why.
    """
    asked, names = options.peers.dtype, _names(options)
    if asked != AUTO:
        return dict.fromkeys(names, asked)
    decided = {name: known[name] for name in names if known.get(name)}
    speeds: dict[str, dict[str, float]] = {name: {} for name in names}
    for dtype in FORMATS:
        for child in children(options, prompts, decided | _others(names, decided, dtype)):
            if not child.ways.keys() <= decided.keys() and child.dtype == dtype:
                await _try_out(child, prompts, folder, speeds, report)
    for name in names:
        if speeds[name] and name not in decided:
            decided[name] = max(speeds[name], key=speeds[name].__getitem__)
            tried = ", ".join(f"{dtype} {rate:.1f}" for dtype, rate in speeds[name].items())
            report(f"{name} is given {decided[name]} (tokens/s of a short answer: {tried})")
    return decided | _others(names, decided, FORMATS[0])


def _others(names: Sequence[str], decided: Formats, dtype: str) -> dict[str, str]:
    return {name: dtype for name in names if name not in decided}


async def _try_out(
    child: PeerSpec,
    prompts: Sequence[BenchPrompt],
    folder: Path,
    speeds: Mapping[str, dict[str, float]],
    report: Callable[[str], None],
) -> None:
    """Tokens per second of each of its ways; none where it does not run in this format."""
    try:
        async with peer_process(child, folder) as peer:
            for name, way in child.ways.items():
                await peer.answer(way, prompts[-1].token_ids, TRIAL)
                tries = [await peer.answer(way, prompts[0].token_ids, TRIAL) for _ in range(TRIES)]
                speeds[name][child.dtype] = max(one.tokens_per_second for one in tries)
    except StartError as error:
        report(f"{child.name} in {child.dtype}: {error}")


def children(
    options: BenchOptions, prompts: Sequence[BenchPrompt], formats: Formats
) -> Iterator[PeerSpec]:
    """The processes that are needed: those of transformers answer in several ways.

    `formats` has those of all peers but llama.cpp, which runs what its file holds.
    """
    asked = options.peers
    for place, cpus in _places(options):
        common = {"threads": len(cpus), "cpus": list(cpus)}
        engine = common | {
            "max_context": context(max(len(one.token_ids) for one in prompts), options.max_tokens),
            "concurrency": max(options.concurrency),
            "prefix_caching": options.seen_before,
        }
        for dtype in dict.fromkeys(formats.values()):
            ways = [
                way
                for way in TRANSFORMERS
                if way in asked.names and formats[_name(way, place)] == dtype
            ]
            if ways:
                yield _transformers(options, ways, place, common | {"dtype": dtype})
        for way in VLLM:
            if way in asked.names:
                dtype = formats[_name(way, place)]
                yield _vllm(options, way, place, engine | {"dtype": dtype})
        for way in LLAMA:
            if way in asked.names:
                yield _llama(options, way, place, engine | {"dtype": AS_STORED})


def _names(options: BenchOptions) -> list[str]:
    """Those of all peers' configurations, in the order of their columns."""
    known = [way for way in PEERS if way in options.peers.names]
    return [_name(way, place) for place, _ in _places(options) for way in known]


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
    options: BenchOptions, ways: Sequence[str], place: str, common: Mapping[str, Any]
) -> PeerSpec:
    drafts = "assisted" in ways
    settings = {
        **common,
        "model": options.target,
        "device": next(iter(options.verifier_device), "cpu"),
        "draft": options.draft if drafts else None,
        "draft_dtype": _float_of(options.draft_dtype) or common["dtype"],
    }
    name, exact = _name("transformers", place), _comparable(options, common["dtype"])
    module = "bench.peers.transformers_child"
    return PeerSpec(name, sys.executable, module, settings, _named(ways, place), exact)


def _float_of(dtype: str | None) -> str | None:
    """A number format that peers have, too; None = theirs."""
    return dtype if dtype in FORMATS else None


def _vllm(options: BenchOptions, way: str, place: str, engine: Mapping[str, Any]) -> PeerSpec:
    from services.engine.checkpoint.bundle import source_folder

    assert options.peers.vllm_python is not None
    folder = source_folder(options.target, engine["dtype"])
    settings = {**engine, "model": str(folder), "ngram": way == "vllm-ngram"}
    python, ways = options.peers.vllm_python, _named([way], place)
    exact = _comparable(options, engine["dtype"])
    return PeerSpec(_name(way, place), python, "bench.peers.vllm_child", settings, ways, exact)


def _llama(options: BenchOptions, way: str, place: str, engine: Mapping[str, Any]) -> PeerSpec:
    model = locate(options.target)
    if model.suffix != ".gguf":
        raise StartError(f"--peers: {way} runs .gguf files, and {options.target} is none")
    how = {"command": options.peers.llama_server, "ngram": way == "llama.cpp-ngram"}
    settings = {**engine, "model": str(model), **how}
    name, ways = _name(way, place), _named([way], place)
    return PeerSpec(name, sys.executable, "bench.peers.llama_child", settings, ways)


def _comparable(options: BenchOptions, dtype: str) -> bool:
    """Whether a peer should write what we do: greedily, both in float32."""
    return options.number_format == dtype == "float32" and options.temperature == 0


def _configuration(child: PeerSpec, name: str, peer: PeerProcess) -> Configuration:
    async def answer(prompt: BenchPrompt, options: Mapping[str, Any]) -> Measured:
        return await peer.answer(child.ways[name], prompt.token_ids, options)

    return Configuration(
        name=name,
        cores=f"{child.settings['threads']} ({peer.about})",
        exact=child.exact,
        answer=answer,
        baseline=True,
        dtype=child.dtype,
    )


def _named(ways: Sequence[str], place: str) -> dict[str, str]:
    return {_name(way, place): way for way in ways}


def _name(name: str, place: str) -> str:
    return f"{name}, all cores" if place == "all" else name
