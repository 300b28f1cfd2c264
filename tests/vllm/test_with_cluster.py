"""Whole clusters whose models vLLM runs, in real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from paceline import Chunk, Client

from services.contract.errors import StartError
from services.engine import start
from services.engine.spec import ModelSpec
from tests.models import tiny_model_folder, tiny_tokenizer
from tests.processes.conftest import PROMPT, Up, start_up, tokens
from tests.vllm.forked import in_a_process
from tests.vllm.kit import (
    ARCHITECTURES,
    START_SECONDS,
    greedy,
    plain,
    quantized_folder,
    wide_folder,
)

pytestmark = pytest.mark.timeout(1800)

IDS = tuple(tiny_tokenizer().encode(PROMPT))
GREEDY = ("--temperature", "0", "--max-tokens", "40")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def up(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Two verifiers and a drafter with a model, all by vLLM."""
    flags = ["--target", str(wide_folder(folder)), "--draft", str(wide_folder(folder, seed=3))]
    with by_vllm(tmp_path_factory.mktemp("up"), "--verifiers", "2", *flags) as running:
        yield running


@contextmanager
def by_vllm(folder: Path, *flags: str) -> Iterator[Up]:
    """`paceline up`, which is ended if the test has not done so."""
    running = start_up(folder, "--engine", "vllm", *flags, seconds=START_SECONDS)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(timeout=60)


def cut(text: list[int]) -> list[int]:
    """As far as the end of the answer."""
    return text[: text.index(1) + 1] if 1 in text else text


def test_workers_are_processes_that_run_vllm(up: Up) -> None:
    for role in ("verifier", "drafter"):
        for worker in up.workers(role):
            assert "--engine vllm" in " ".join(worker.cmdline())
            assert any("vllm" in entry.path for entry in worker.memory_maps())


def said(target: Path, count: int) -> list[int]:
    """What vLLM says behind the prompt."""
    spec = ModelSpec(str(target), threads=1, kv_capacity_tokens=2048, engine="vllm")
    return greedy(start.load(spec), IDS, count)


@pytest.mark.parametrize("arch", ARCHITECTURES[1:])
def test_greedy_text_is_that_of_transformers(arch: str, folder: Path) -> None:
    assert in_a_process(said, wide_folder(folder, arch), 40) == plain(arch, IDS, 40)


def test_a_quantized_draft_model_drafts_for_a_quantized_target(
    folder: Path, tmp_path: Path
) -> None:
    # vLLM has no products of 4 bits on CPUs with AVX2 alone.
    four_bits = torch.backends.cpu.get_cpu_capability() != "AVX2"
    schemes = ("awq" if four_bits else "int8", "int8")
    target, draft = (str(quantized_folder(folder, scheme)) for scheme in schemes)
    flags = ("--target", target, "--draft", draft, "--dtype", "bfloat16")
    with by_vllm(tmp_path, *flags) as other:
        events = other.generate(*GREEDY)
        assert tokens(events) == tokens(other.generate(*GREEDY, "--no-speculation"))
    assert events[-1]["speculation"]["num_accepted_draft_tokens"] > 0


def test_greedy_text_with_a_draft_model_is_that_of_transformers(up: Up) -> None:
    events = up.generate(*GREEDY)
    assert tokens(events) == cut(plain("llama", IDS, 40))
    assert events[-1]["speculation"]["num_draft_tokens"] > 0


def test_a_seed_gives_one_text_for_any_window_draft_and_crowd(up: Up) -> None:
    asked = ("--temperature", "0.9", "--top-p", "0.95", "--seed", "5", "--max-tokens", "40")
    alone = tokens(up.generate(*asked, "--no-speculation"))
    for window in ("1", "3", "8"):
        assert tokens(up.generate(*asked, "--num-speculative-tokens", window)) == alone

    async def crowd() -> list[list[int]]:
        async with Client(up.address) as client:
            same = [
                client.generate(PROMPT, temperature=0.9, top_p=0.95, seed=5, max_tokens=40)
                for _ in range(6)
            ]
            others = [client.generate(PROMPT * n, seed=n, max_tokens=60) for n in range(1, 5)]
            answers = await asyncio.gather(*map(_whole, [*same, *others]))
        return answers[:6]

    assert asyncio.run(crowd()) == [alone] * 6


async def _whole(stream) -> list[int]:
    return [
        token async for event in stream if isinstance(event, Chunk) for token in event.token_ids
    ]


def test_a_model_whose_state_cannot_be_rolled_back_is_refused_with_one_line(folder: Path) -> None:
    with pytest.raises(StartError, match="MambaSpec, which cannot be rolled back") as refused:
        in_a_process(said, tiny_model_folder(folder, "mamba"), 1)
    assert "\n" not in str(refused.value)
