"""transformers as a peer: its three ways write the very text of plain decoding in float32."""

import functools
from pathlib import Path

import pytest
import torch

from bench.figures import figures_of
from bench.peers.lines import Request
from bench.peers.options import TRANSFORMERS
from bench.peers.transformers_child import Generator, WholeHead, assistant
from bench.prompts import BenchPrompt
from bench.runner import Configuration, Schedule, Trial, run_schedule
from services.engine.checkpoint.files import weights_digest
from services.engine.native import NativeEngine
from services.engine.native.student import cut, save_student
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.bench.peers.kit import GREEDY, child
from tests.models import tiny_model, tiny_model_folder, tiny_tokenizer

TEXTS = ("the small drafter rides ahead and the large verifier checks the small drafter", "keep")
TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target, and a drafter that was cut from it, with a head for some tokens only."""
    folder = tmp_path_factory.mktemp("models")
    saved = tiny_model_folder(folder, "llama")
    student = cut(tiny_model("llama"), [0], torch.arange(0, 300))
    save_student(
        student,
        folder / "draft",
        base=str(saved),
        base_weights=weights_digest(str(saved), folder / "cache"),
        storage="int8",
        card={},
    )
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


def test_a_distilled_drafter_assists_with_its_own_layers_and_head(folder):
    made = assistant(str(folder / "draft"), str(folder / "llama-0"), "float32", "cpu")
    assert len(made.model.layers) == 1
    logits = made(torch.tensor([prompt(0).token_ids])).logits
    assert logits.shape[-1] == 320
    assert (logits[..., 300:] == torch.finfo(torch.float32).min).all()
    assert made.get_output_embeddings().head.out_features == 300


def test_an_assistant_has_the_law_of_our_own_drafter(folder):
    draft, base = str(folder / "draft"), str(folder / "llama-0")
    engine = NativeEngine.load(ModelSpec(draft, base=base))
    ids = prompt(0).token_ids
    [ours] = engine.forward([Segment(engine.new_cache(len(ids)), ids)])
    rows = assistant(draft, base, "float32", "cpu")(torch.tensor([ids])).logits[0]
    theirs = rows[:, engine.head_ids]
    assert torch.allclose(theirs, ours, atol=1e-4)


def test_a_small_head_answers_where_it_knows_and_nowhere_else():
    head, ids = torch.nn.Linear(4, 3, bias=False), torch.tensor([1, 4, 5])
    hidden = torch.randn(2, 4)
    row = WholeHead(head, ids, 6)(hidden)
    assert torch.equal(row[:, ids], head(hidden))
    assert (row[:, [0, 2, 3]] == torch.finfo(torch.float32).min).all()
