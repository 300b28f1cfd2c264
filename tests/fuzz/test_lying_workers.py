"""A worker that lies ends its own link or session: every text is what it would have been."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from math import inf, nan

import pytest
from paceline.client import Client

from orchestrator.steering import credit
from orchestrator.steering.config import Limits
from services.contract import types as t
from services.contract.frames import (
    DraftFrame,
    StepEnd,
    StepFrame,
    StepRow,
    pack,
    step_frame,
    step_rows,
)
from services.contract.worker_messages import SessionGone, SessionStarted
from tests.fuzz import liars
from tests.fuzz.engine import CONTEXT, table_engine
from tests.fuzz.liars import (
    draft_columns,
    drafts,
    frames,
    lying_drafter,
    lying_verifier,
    of_kind,
    rows_changed,
    steps,
    trees,
)
from tests.integration.cluster import PATIENT, cluster
from tests.waiting import until

TOKENS, FEWER = 24, 10
PROMPTS = [(first, second) for first in range(3) for second in range(2)]
LIMITS = Limits(worker_attempts=50, drafter_backoff=0.01)
ROW = t.LogprobRow(-1.0)


def greedy(prompt):
    """What the table says, token after token."""
    table, text = table_engine()._table, list(prompt)
    for _ in range(TOKENS):
        text.append(int(table[text[-2], text[-1]].argmax()))
    return tuple(text[len(prompt) :])


async def texts(running, **options):
    """All prompts at once, greedily."""
    options = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, **options}
    async with asyncio.timeout(120):
        done = await asyncio.gather(
            *(running.client.generate(tokens=prompt, **options) for prompt in PROMPTS)
        )
    return [tuple(generation.token_ids) for generation in done]


@asynccontextmanager
async def served(verifiers, drafters):
    async with cluster(
        verifiers, drafters, patience=PATIENT, limits=LIMITS, num_speculative_tokens=4
    ) as running:
        yield running


def late(lie, after=4):
    """The truth for a while: so the lie hits sessions that have begun."""
    told = []

    def tell(event):
        told.append(event)
        opens = isinstance(event, SessionStarted)
        return lie(event) if opens or len(told) > after else [event]

    return tell


def with_tokens(change):
    """Steps whose tokens are others, all of them but the last one drafted and accepted."""

    def other(row):
        tokens = change(row)
        return row._replace(
            tokens=tokens,
            accepted=len(tokens) - 1,
            judged=tokens[:-1],
            path=(),
            end=StepEnd.BONUS,
            sources=b"",
        )

    return of_kind(StepFrame, lambda frame: rows_changed(frame, other))


def ending_in(token):
    return with_tokens(lambda row: (*row.tokens[:-1], token))


def opened(change):
    return of_kind(SessionStarted, change)


def each(change):
    return of_kind(StepFrame, change)


def of_others(frame):
    """Tokens of every session that there may be, at every place."""
    foreign = [[StepRow(h, 1, at, (1,)) for h in range(1, 40)] for at in range(8)]
    return [*[step_frame(StepFrame(1), rows) for rows in foreign], frame]


MOST = t.Progress(2**64 - 1, 2**32 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 1e8)


FALSE_STEPS = {
    "another opening": steps(opening=lambda row: row.opening + 1),
    "an opening at the end of all numbers": steps(opening=2**32 - 1),
    "another place in the text": steps(position=lambda row: row.position + 1),
    "a place that was told of before": steps(position=lambda row: max(0, row.position - 1)),
    "positions that run back": each(
        lambda frame: [frame, rows_changed(frame, lambda row: row._replace(position=0))]
    ),
    "no token at all": frames(counts=lambda frame: bytes(frame.size)),
    "columns of unequal length": frames(tokens=lambda frame: frame.tokens[:-4]),
    "numbers that are cut": frames(positions=lambda frame: frame.positions[:-1]),
    "a session twice in a step": frames(
        handles=lambda frame: pack("I", [frame.every_handle()[0]] * frame.size)
    ),
    "a token beyond the vocabulary": ending_in(12),
    "the largest token there is": ending_in(2**32 - 1),
    "more tokens than the window allows": with_tokens(lambda row: (*row.tokens, *[1] * 40)),
    "tokens of another session": each(of_others),
    "accepted what nobody drafted": frames(accepted=lambda frame: frame.counts),
    "an acceptance that is none": frames(drafted=lambda frame: pack("H", [9] * frame.size)),
    "logprobs that nobody asked for": steps(logprobs=lambda row: (ROW,) * len(row.tokens)),
    "a time that is no number": frames(step_ms=nan),
    "an endless time": steps(queue_ms=inf),
    "a negative time": steps(draft_ms=-1.0),
    "each many times": each(lambda frame: [frame] * 200),
    "an opening that nobody asked for": opened(
        lambda told: told._replace(opening=told.opening + 5)
    ),
    "a prompt from the future": opened(lambda told: told._replace(prefill_ms=-inf)),
    "drains without end": each(lambda frame: [*[t.Draining(2**32 - 1)] * 50, frame]),
    "progress that is no number": each(lambda frame: [t.Progress(step_ms=nan), frame]),
    "progress beyond measure": each(lambda frame: [MOST, frame]),
    "failures of a megabyte": each(
        lambda frame: [
            SessionGone(row.handle, row.opening, t.FailureReason.INTERNAL, "x" * 2**20)
            for row in step_rows(frame)
        ]
    ),
    "sessions that nobody has": steps(handle=lambda row: row.handle + 10**6),
}
# These end the whole link, which is told in one line.
COMPLAINTS = {
    "another opening": "is the last",
    "an opening at the end of all numbers": "is the last",
    "another place in the text": "tokens were received",
    "a place that was told of before": "tokens were received",
    "positions that run back": "tokens were received",
    "no token at all": "StepFrame",
    "columns of unequal length": "StepFrame.tokens",
    "numbers that are cut": "StepFrame",
    "a token beyond the vocabulary": "beyond the vocabulary",
    "the largest token there is": "beyond the vocabulary",
    "more tokens than the window allows": "beyond its limit",
    "accepted what nobody drafted": "StepFrame",
    "an acceptance that is none": "StepFrame",
    "a time that is no number": "is no duration",
    "an endless time": "is no duration",
    "a negative time": "is no duration",
    "each many times": "tokens were received",
    "a prompt from the future": "is no duration",
    "progress that is no number": "is no duration",
}
# Steps of these never come, and only a session's own deadline tells.
_SILENT = {"sessions that nobody has"}


@pytest.mark.parametrize("lie", sorted(FALSE_STEPS.keys() - _SILENT))
async def test_a_lying_verifier_changes_no_text(lie, caplog):
    false = await lying_verifier("liar", late(FALSE_STEPS[lie]))
    true = await lying_verifier("honest", liars.honest)
    drafter = await lying_drafter("d1", liars.honest)
    async with served([false, true], [drafter]) as running:
        assert await texts(running) == [greedy(prompt) for prompt in PROMPTS]
    assert COMPLAINTS.get(lie, "") in caplog.text


async def test_a_verifier_that_runs_beyond_its_credit_loses_its_link_and_nobody_a_token(
    monkeypatch, caplog
):
    monkeypatch.setattr(credit, "LEAST", 1)
    monkeypatch.setattr(credit, "MOST", 1)
    false = await lying_verifier("liar", liars.honest, core=liars.Unbounded)
    true = await lying_verifier("honest", liars.honest)
    async with served([false, true], []) as running:
        assert await texts(running) == [greedy(prompt) for prompt in PROMPTS]
    assert "beyond its limit" in caplog.text


async def test_an_answer_for_nobody_holds_up_only_the_sessions_it_was_kept_from():
    false = await lying_verifier("liar", FALSE_STEPS["sessions that nobody has"])
    true = await lying_verifier("honest", liars.honest)
    async with served([false, true], []) as running:
        options = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
        asked = [running.client.generate(tokens=prompt, **options) for prompt in PROMPTS]
        generations = [asyncio.ensure_future(one) for one in asked]
        await until(lambda: sum(one.done() for one in generations) >= len(PROMPTS) / 2)
        assert {prompt for prompt, one in zip(PROMPTS, generations, strict=True) if not one.done()}
        await false.kill()
        async with asyncio.timeout(60):
            done = await asyncio.gather(*generations)
        assert [tuple(one.token_ids) for one in done] == [greedy(prompt) for prompt in PROMPTS]


BAD_LOGPROBS = {
    "no numbers": t.LogprobRow(nan),
    "above one": t.LogprobRow(3.0),
    "endless": t.LogprobRow(inf),
    "more than were asked for": t.LogprobRow(-1.0, (1, 2, 3), (-1.0,) * 3),
    "of tokens that are none": t.LogprobRow(-1.0, (99,), (-1.0,)),
    "with alternatives that are no numbers": t.LogprobRow(-1.0, (1,), (nan,)),
}


@pytest.mark.parametrize("row", BAD_LOGPROBS.values(), ids=BAD_LOGPROBS.keys())
async def test_logprobs_that_cannot_be_are_not_emitted(row):
    lie = steps(logprobs=lambda step: (row,) * len(step.tokens))
    false = await lying_verifier("liar", late(lie))
    true = await lying_verifier("honest", liars.honest)
    async with served([false, true], []) as running:
        options = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": 2}
        asked = [running.client.generate(tokens=prompt, **options) for prompt in PROMPTS]
        async with asyncio.timeout(120):
            done = await asyncio.gather(*asked)
        for generation in done:
            assert len(generation.logprobs) == len(generation.token_ids)
            for entry in generation.logprobs:
                assert all(value <= 1e-3 for value in (entry.logprob, *entry.top_logprobs))
                assert len(entry.top_token_ids) <= 2
                assert all(token < 12 for token in entry.top_token_ids)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (ending_in(2**32 - 1), "beyond the vocabulary"),
        (FALSE_STEPS["columns of unequal length"], "StepFrame.tokens"),
    ],
    ids=["what cannot be", "what does not add up"],
)
async def test_a_verifier_that_never_tells_the_truth_ends_its_sessions_and_nothing_else(
    lie, complaint
):
    false = await lying_verifier("liar", lie)
    # It asks again for seconds, not for a minute.
    hurried = partial(Client, patience=5.0)
    async with cluster([false], [], patience=PATIENT, make_client=hurried) as running:
        with pytest.raises(Exception, match=complaint):
            await running.client.generate(tokens=[1, 2], temperature=0.0, max_tokens=4)
        assert running.inference.active_sessions == 0
        await until(lambda: all(link.up for link in running.pool.links()))


def gave_up(frame, kept=[]):  # noqa: B006
    """Each draft, and behind it the one before, under the name that was given up."""
    before, kept[:] = [*kept], [frame]
    return [frame, *before]


FALSE_DRAFTS = {
    "tokens beyond the vocabulary": trees(token_ids=lambda draft: (12,) * len(draft.tree)),
    "beyond the window": trees(token_ids=(1,) * 1000, q=None),
    "a huge tree": trees(token_ids=(1,) * 30_000, parents=(-1,) * 30_000, q=None),
    "parents after their children": trees(token_ids=(1, 2), parents=(1, 0), q=None),
    "parents of nobody": trees(token_ids=(1, 2), parents=(-7, 2**15 - 1), q=None),
    "columns of unequal length": draft_columns(hashes=lambda frame: frame.hashes[:-8]),
    "laws over more than there is": trees(
        q=(t.SparseRow((1,) * 10_000, (1e-4,) * 10_000),), proposal=t.Proposal.SAMPLED
    ),
    "laws without end": trees(q=(t.SparseRow((1,), (1.0,)),) * 10_000, proposal=t.Proposal.SAMPLED),
    "probabilities that are no numbers": trees(
        q=lambda draft: (t.SparseRow((1, 2), (nan, -inf)),) * len(draft.tree),
        proposal=t.Proposal.SAMPLED,
    ),
    "another text": drafts(hash=lambda draft: draft.hash ^ 1),
    "a place that is none": drafts(position=2**32 - 1),
    "answers for the future": drafts(position=lambda draft: draft.position + 300),
    "answers for the past": drafts(position=0),
    "another opening": drafts(name=lambda draft: draft.name._replace(opening=9)),
    "numbers that run back": drafts(name=lambda draft: draft.name._replace(number=0)),
    "drafts that it gave up": of_kind(DraftFrame, gave_up),
    "a time that is no number": drafts(draft_ms=nan),
    "a negative time": drafts(draft_ms=-1e30),
    "each many times": of_kind(DraftFrame, lambda frame: [frame] * 200),
    "a flood": of_kind(DraftFrame, lambda frame: [frame] * 3000),
    "an opening that nobody asked for": opened(lambda told: told._replace(opening=2**32 - 1)),
    "sessions that nobody has": drafts(handle=lambda draft: draft.handle + 10**6),
}
DRAFT_COMPLAINTS = {
    "tokens beyond the vocabulary": "beyond the vocabulary",
    "a huge tree": "a draft of 30000 tokens",
    "columns of unequal length": "DraftFrame",
    "a place that is none": "tokens were received",
    "answers for the future": "tokens were received",
    "another opening": "is the last",
    "a time that is no number": "is no duration",
    "a negative time": "is no duration",
    "a flood": "drafts without a step",
}


@pytest.mark.parametrize("lie", FALSE_DRAFTS)
async def test_a_lying_drafter_changes_no_text(lie, caplog):
    verifier = await lying_verifier("v1", liars.honest)
    false = await lying_drafter("liar", late(FALSE_DRAFTS[lie]))
    true = await lying_drafter("honest", liars.honest)
    async with served([verifier], [false, true]) as running:
        expected = [greedy(prompt)[:FEWER] for prompt in PROMPTS]
        assert await texts(running, max_tokens=FEWER) == expected
        trees = {"num_candidates": 2, "method": "model", "max_tokens": FEWER}
        assert await texts(running, **trees) == expected
    assert DRAFT_COMPLAINTS.get(lie, "") in caplog.text


def test_the_context_holds_what_is_asked_here():
    assert 2 + TOKENS < CONTEXT
