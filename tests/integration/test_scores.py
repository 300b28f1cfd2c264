import asyncio
import runpy
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from paceline import (
    Chunk,
    FailedPrecondition,
    InvalidArgument,
    PromptLogprobs,
    Started,
)

from services.contract.types import Role
from services.verifier import scores as verifier_scores
from services.verifier.options import VerifierOptions
from tests.integration.cluster import (
    PROMPT,
    cluster,
    engine,
    start_core,
    start_drafter,
    start_verifier,
    target,
    verifier_core,
)
from tests.models import tiny_tokenizer
from tests.waiting import until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "lm_eval_model.py"
CONTEXT = f"{PROMPT}. Before each law stands"
WORDS = [" the small drafter", " a law", " nobody at all", "\nthe verifier"]


def laws(ids):
    """Transformers' own log-probabilities [tokens, V] of a text."""
    with torch.no_grad():
        return target()(torch.tensor([ids])).logits[0].float().log_softmax(-1)


def reckoned(context, continuation):
    """What lm-eval's `_encode_pair` and `loglikelihood` make of two texts."""
    encode = tiny_tokenizer().encode
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    before = encode(context)
    return before, encode(context + continuation)[len(before) :]


def check(score, before, behind, top=None):
    rows = laws(before + behind)[len(before) - 1 : -1]
    own = rows.gather(-1, torch.tensor([behind]).T).flatten()
    assert score.token_ids == tuple(behind)
    assert [one.logprob for one in score.tokens] == pytest.approx(own.tolist(), abs=1e-3)
    assert score.logprob == pytest.approx(own.sum().item(), abs=1e-3)
    assert score.is_greedy == (rows.argmax(-1).tolist() == behind)
    for one, row in zip(score.tokens, rows, strict=True):
        best = row.topk(top or 0)
        assert one.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-3)


@asynccontextmanager
async def served(**options):
    async with cluster([await start_verifier()], [], **options) as one:
        yield one


async def test_texts_are_scored_as_transformers_scores_them():
    async with served() as one:
        for context in (CONTEXT, f"{CONTEXT}  ", "the"):
            found = await one.client.score(context, WORDS, logprobs=3)
            for score, word in zip(found.scores, WORDS, strict=True):
                check(score, *reckoned(context, word), top=3)


async def test_a_greedy_output_is_known_as_one():
    async with served() as one:
        text = tiny_tokenizer().encode(PROMPT)
        output = await one.client.generate(PROMPT, max_tokens=12, temperature=0.0, ignore_eos=True)
        ids = list(output.token_ids)
        other = [*ids[:-1], (ids[-1] + 1) % 300]
        found = await one.client.score(tokens=text, continuations=[ids, other])
        assert [score.is_greedy for score in found.scores] == [True, False]


async def test_prompt_logprobs_come_before_the_output_whatever_is_cached(monkeypatch):
    monkeypatch.setattr(verifier_scores, "MOST_ROWS", 7)
    monkeypatch.setattr("orchestrator.session.output.PROMPT_PART", 10)
    text = tiny_tokenizer().encode(CONTEXT)
    rows = laws(text)[:-1]
    own = rows.gather(-1, torch.tensor([text[1:]]).T).flatten().tolist()
    asked = {"max_tokens": 6, "temperature": 0.0, "prompt_logprobs": 2}
    async with cluster([await start_verifier()], [await start_drafter()]) as one:
        plain = await one.client.generate(CONTEXT, max_tokens=6, temperature=0.0)
        for _ in range(2):
            events = [event async for event in one.client.generate(CONTEXT, **asked)]
            kinds = [type(event) for event in events]
            assert kinds[:2] == [Started, PromptLogprobs]
            assert PromptLogprobs not in kinds[kinds.index(Chunk) :]
            assert kinds.count(PromptLogprobs) > 1
            parts = [event for event in events if type(event) is PromptLogprobs]
            told = [row for part in parts for row in part.logprobs]
            assert [row.token_id for row in told] == text[1:]
            assert [row.logprob for row in told] == pytest.approx(own, abs=1e-3)
            assert told[3].top_token_ids == tuple(rows[3].topk(2).indices.tolist())
            done = await one.client.generate(CONTEXT, **asked)
            assert done.token_ids == plain.token_ids
            assert list(done.prompt_logprobs) == told


def _sessions(one):
    return {link.worker_id: len(link.assigned) for link in one.pool.links(Role.VERIFIER)}


async def test_a_caller_that_leaves_frees_what_its_scores_held(monkeypatch):
    monkeypatch.setattr(verifier_scores, "MOST_ROWS", 1)
    async with served() as one:
        with pytest.raises(Exception, match=r"(?i)deadline"):
            await one.client.score(CONTEXT * 8, WORDS * 20, timeout=0.3)
        await until(lambda: not any(_sessions(one).values()))
        await until(lambda: not one.inference.sessions_of("default"))
        assert await one.client.score("the", [" law"])


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"context": "the", "continuations": []}, "continuations"),
        ({"context": "the", "continuations": ["a"] * 129}, "continuations"),
        ({"context": "the", "continuations": [""]}, "continuations[0]"),
        ({"context": "the", "continuations": ["a", [3]]}, "continuations"),
        ({"context": " ", "continuations": ["a"]}, "context"),
        ({"tokens": [], "continuations": [[1]]}, "tokens"),
        ({"tokens": [1], "continuations": [[1_000_000]]}, "continuations[0].tokens.ids[0]"),
        ({"tokens": [1], "continuations": [[1] * 100_000]}, "continuations[0]"),
        ({"context": "the", "continuations": ["a"], "logprobs": 21}, "logprobs"),
        ({"context": "a" * 1_000_000, "continuations": ["a"] * 9}, "continuations"),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_its_field(one_cluster, asked, field):
    with pytest.raises(InvalidArgument) as refused:
        await one_cluster.client.score(**asked)
    assert [violation.field for violation in refused.value.violations] == [field]


@pytest.fixture
async def one_cluster():
    async with served() as one:
        yield one


async def test_a_verifier_that_cannot_score_is_asked_for_none(monkeypatch):
    monkeypatch.setattr("services.verifier.description.SCORES", "other")
    async with served() as one:
        with pytest.raises(FailedPrecondition):
            await one.client.score("the", [" law"])
        with pytest.raises(InvalidArgument, match="prompt_logprobs"):
            await one.client.generate("the", prompt_logprobs=1)
        assert (await one.client.generate("the", max_tokens=2)).token_ids


async def test_the_example_for_lm_eval_gives_its_answers(monkeypatch):
    stubs = {name: ModuleType(name) for name in ("lm_eval", "lm_eval.api.model", "lm_eval.tasks")}
    stubs["lm_eval.api.model"].LM = object
    stubs["lm_eval.tasks"].TaskManager = object
    for name, stub in (stubs | {"lm_eval.api": ModuleType("lm_eval.api")}).items():
        monkeypatch.setitem(sys.modules, name, stub)
    example = runpy.run_path(str(EXAMPLE))["Paceline"]
    asked = [SimpleNamespace(args=(CONTEXT, word)) for word in (*WORDS, WORDS[0])]
    async with served() as one:
        model = example(one.address, first_token=5)
        found = await asyncio.to_thread(model.loglikelihood, asked)
        scored = (await one.client.score(CONTEXT, WORDS)).scores
        assert found[:-1] == [(pytest.approx(x.logprob, abs=1e-4), x.is_greedy) for x in scored]
        [alone] = await asyncio.to_thread(
            model.loglikelihood, [SimpleNamespace(args=("", WORDS[0]))]
        )
        ids = tiny_tokenizer().encode(WORDS[0])
        check((await one.client.score(tokens=[5], continuations=[ids])).scores[0], [5], ids)
        assert alone[0] == pytest.approx(_sum([5], ids), abs=1e-3)
        options = {"until": [" "], "max_gen_toks": 4}
        [text] = await asyncio.to_thread(
            model.generate_until, [SimpleNamespace(args=(CONTEXT, options))]
        )
        assert " " not in text


def _sum(before, behind):
    rows = laws(before + behind)[len(before) - 1 : -1]
    return rows.gather(-1, torch.tensor([behind]).T).sum().item()


ROOM = 400
"""Tokens of K/V, of which texts that ended keep 200 at most."""


@pytest.mark.parametrize("ephemeral", [True, False])
@pytest.mark.parametrize("length", [60, 120, 280])
async def test_a_context_is_read_once_a_call_however_few_of_its_texts_fit_at_a_time(
    length, ephemeral
):
    fed = []
    loaded = engine(batch_invariant=None, kv_capacity_tokens=ROOM)
    own = VerifierOptions(on_step=lambda step: fed.extend(one.tokens for one in step.entries))
    verifier = await start_core(verifier_core, loaded, "v1", loaded.bundle, options=own)
    context = [(7 * i + i // 5) % 290 + 5 for i in range(length)]
    behind = [[5 + i, 40 + i, 7] for i in range(20)]
    async with cluster([verifier], []) as one:
        asked = {"tokens": context, "continuations": behind, "ephemeral": ephemeral}
        first = await one.client.score(**asked)
        # Of each text the context's last token is fed again, and its own.
        assert sum(fed) <= length + 4 * len(behind)
        for score, ids in zip(first.scores, behind, strict=True):
            check(score, context, ids)
        await until(lambda: not any(_sessions(one).values()))
        stays = not ephemeral and length <= ROOM // 2
        await until(lambda: bool(verifier.host.progress().kv_tokens_spare) is stays)
        assert verifier.host.progress().kv_tokens_used == 0
        fed.clear()
        await one.client.score(**asked | {"continuations": [[3, 2, 1]]})
        assert sum(fed) == (3 if stays else length + 2)


async def test_a_text_to_score_that_no_verifier_can_hold_is_refused_with_the_figures():
    async with cluster([await start_verifier(kv_capacity_tokens=ROOM)], []) as one:
        whole = {"tokens": [7] * (ROOM - 3), "continuations": [[1, 2, 3], [4, 5, 6]]}
        assert len((await one.client.score(**whole, ephemeral=True)).scores) == 2
        whole["continuations"].append([1] * 4)
        with pytest.raises(
            InvalidArgument, match=r"continuations: .401 tokens.*at most 400 with .*K/V"
        ):
            await one.client.score(**whole, ephemeral=True)
