"""transformers as a peer: its three ways write the very text of plain decoding in float32."""

import functools
from pathlib import Path

import pytest
import torch

from bench.figures import figures_of
from bench.peers.lines import Request
from bench.peers.options import TRANSFORMERS
from bench.peers.transformers_child import Generator, loaded
from bench.prompts import BenchPrompt
from bench.runner import Configuration, Schedule, Trial, run_schedule
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.bench.peers.kit import GREEDY, child
from tests.models import tiny_model, tiny_model_folder, tiny_tokenizer

TEXTS = ("the small drafter rides ahead and the large verifier checks the small drafter", "keep")
TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target, and a draft model of its vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    tiny_model_folder(folder, "llama")
    tiny_model_folder(folder, "qwen2").rename(folder / "draft")
    return folder


def prompt(number: int) -> BenchPrompt:
    return BenchPrompt(number, "qa", TEXTS[number], tuple(tiny_tokenizer().encode(TEXTS[number])))


def plain(ids: tuple[int, ...], tokens: int = TOKENS) -> tuple[int, ...]:
    with torch.no_grad():
        out = tiny_model("llama").generate(
            torch.tensor([ids]), max_new_tokens=tokens, do_sample=False
        )
    return tuple(out[0, len(ids) :].tolist())


def settings(folder: Path) -> dict[str, object]:
    common = {
        "threads": 1,
        "cpus": None,
        "device": "cpu",
        "dtype": "float32",
        "draft_dtype": "float32",
    }
    return {**common, "model": str(folder / "llama-0"), "draft": str(folder / "draft")}


async def test_all_three_ways_write_the_text_of_plain_decoding(folder, tmp_path):
    trials: list[Trial] = []
    async with child("bench.peers.transformers_child", tmp_path, **settings(folder)) as peer:

        async def answer(way, prompt, options):
            return await peer.answer(way, prompt.token_ids, options)

        configurations = [
            Configuration(way, answer=functools.partial(answer, way)) for way in TRANSFORMERS
        ]
        sampling = {**GREEDY, "max_tokens": TOKENS}
        schedule = Schedule([prompt(0), prompt(1)], 1, (1, 2), sampling, warm_up=prompt(1))
        await run_schedule(configurations, schedule, trials.append, lambda _: None)
    texts = {
        (one.configuration, asked.question_id): result.token_ids
        for one in trials
        for asked, result in zip(one.prompts, one.results, strict=True)
    }
    assert texts == {(way, n): plain(prompt(n).token_ids) for way in TRANSFORMERS for n in (0, 1)}
    by_way = {way: figures_of(trials, way, "transformers") for way in TRANSFORMERS}
    assert by_way["transformers"].block_efficiency == 1.0
    assert by_way["transformers"].drafted_per_token == 0.0
    assert by_way["assisted"].drafted_per_token > 0.0
    assert by_way["lookup"].drafted_per_token > 0.0
    assert by_way["lookup"].rules == ("greedy",)


class Told:
    """Notes what a generator says."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int | None]] = []
        self.token_ids: list[int] = []
        self.reason = ""

    def tokens(self, _: Request, token_ids: list[int], drafted: int | None) -> None:
        self.steps.append((len(token_ids), drafted))
        self.token_ids += token_ids

    def end(self, _: Request, reason: str) -> None:
        self.reason = reason


def told(way: str, draft: object, **changed: object) -> Told:
    ids = prompt(0).token_ids
    given = {"max_tokens": 12, "temperature": 0.0, "top_p": 1.0, "seed": 1, **changed}
    heard = Told()
    Generator(heard, tiny_model("llama"), draft).answer(Request(1, way, ids, **given))
    return heard


def test_an_assistant_that_is_the_target_itself_is_always_accepted():
    heard = told("assisted", tiny_model("llama"))
    assert tuple(heard.token_ids) == plain(prompt(0).token_ids, 12)
    assert heard.reason == "length"
    for emitted, drafted in heard.steps[:-1]:
        assert drafted is not None
        assert emitted == drafted + 1
    assert any(drafted for _, drafted in heard.steps)


def test_sampling_draws_by_its_seed():
    first, again, other = (told("transformers", None, temperature=1.0, seed=s) for s in (1, 1, 2))
    assert first.token_ids == again.token_ids != other.token_ids


def test_an_assistant_has_the_law_of_our_own_drafter(folder):
    draft = str(folder / "draft")
    engine = NativeEngine.load(ModelSpec(draft))
    ids = prompt(0).token_ids
    [ours] = engine.forward([Segment(engine.new_cache(len(ids)), ids)])
    theirs = loaded(draft, "float32", "cpu")(torch.tensor([ids])).logits[0]
    assert torch.allclose(theirs, ours, atol=1e-4)
