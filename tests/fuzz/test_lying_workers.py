"""A worker that lies ends its own link or session: every text is what it would have been."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf, nan

import pytest
from paceline.client import Client

from orchestrator.steering.config import Limits
from services.contract import types as t
from tests.fuzz import liars
from tests.fuzz.engine import CONTEXT, table_engine
from tests.fuzz.liars import drafts, lying_drafter, lying_verifier, of_kind, trees, verdicts
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
        opens = isinstance(event, t.VerifyOpened | t.DraftOpened)
        return lie(event) if opens or len(told) > after else [event]

    return tell


def one_more(verdict):
    return (*verdict.token_ids, 1, 2, 3)


def ending_in(token):
    return lambda verdict: (*verdict.token_ids[:-1], token)


def opened(change):
    return of_kind(t.VerifyOpened, change)


def each(change):
    return of_kind(t.Verdict, change)


MOST = t.Progress(2**64 - 1, 2**32 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 1e8)


FALSE_VERDICTS = {
    "another epoch": verdicts(epoch=lambda verdict: verdict.epoch + 1),
    "a round that was never sent": verdicts(round=lambda verdict: verdict.round + 1000),
    "a round at the end of all numbers": verdicts(round=2**32 - 1),
    "another place in the text": verdicts(base_len=lambda verdict: verdict.base_len + 1),
    "no token at all": verdicts(token_ids=(), accepted=0, accepted_nodes=()),
    "a token beyond the vocabulary": verdicts(token_ids=ending_in(12)),
    "the largest token there is": verdicts(token_ids=ending_in(2**32 - 1)),
    "more tokens than the block allows": verdicts(token_ids=one_more),
    "more accepted than was sent": verdicts(
        token_ids=(1,) * 70, accepted=70, accepted_nodes=(), all_accepted=True
    ),
    "an endless text": verdicts(token_ids=(1,) * 100_000, accepted=99_999, accepted_nodes=()),
    "an acceptance that is none": verdicts(all_accepted=lambda verdict: not verdict.all_accepted),
    "discarded without a reason": verdicts(discarded=True),
    "logprobs that nobody asked for": verdicts(logprobs=lambda of: (ROW,) * len(of.token_ids)),
    "a time that is no number": verdicts(verify_ms=nan),
    "an endless time": verdicts(queue_ms=inf),
    "a negative time": verdicts(verify_ms=-1.0),
    "each many times": each(lambda verdict: [verdict] * 200),
    "verdicts before there is a session": opened(
        lambda told: [t.Verdict(told.session, 1, 1, 0, (1,)), told]
    ),
    "an epoch that nobody opened": opened(lambda told: replace(told, epoch=told.epoch + 5)),
    "a prompt from the future": opened(lambda told: replace(told, prefill_ms=-inf)),
    "drains without end": each(lambda verdict: [*[t.Draining(2**32 - 1)] * 50, verdict]),
    "progress that is no number": each(lambda verdict: [t.Progress(step_ms=nan), verdict]),
    "progress beyond measure": each(lambda verdict: [MOST, verdict]),
    "failures of a megabyte": each(
        lambda of: t.SessionFailed(of.session, t.FailureReason.INTERNAL, "x" * 2**20, of.epoch)
    ),
    "sessions that nobody has": verdicts(session="default/nobody"),
    "a session without a name": verdicts(session="a\nforged line"),
}
# These end the whole link, which is told in one line.
COMPLAINTS = {
    "more tokens than the block allows": "accepted among",
    "a time that is no number": "is no duration",
    "an endless time": "is no duration",
    "a negative time": "is no duration",
    "a prompt from the future": "is no duration",
    "progress that is no number": "is no duration",
    "a session without a name": "no printable name",
}
# The verdict of these never comes, and only a session's own deadline tells.
_SILENT = {"sessions that nobody has"}


@pytest.mark.parametrize("lie", sorted(FALSE_VERDICTS.keys() - _SILENT))
async def test_a_lying_verifier_changes_no_text(lie, caplog):
    false = await lying_verifier("liar", late(FALSE_VERDICTS[lie]))
    true = await lying_verifier("honest", liars.honest)
    drafter = await lying_drafter("d1", liars.honest)
    async with served([false, true], [drafter]) as running:
        assert await texts(running) == [greedy(prompt) for prompt in PROMPTS]
    assert COMPLAINTS.get(lie, "") in caplog.text


async def test_an_answer_for_nobody_holds_up_only_the_sessions_it_was_kept_from():
    false = await lying_verifier("liar", FALSE_VERDICTS["sessions that nobody has"])
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
    lie = verdicts(logprobs=lambda verdict: (row,) * len(verdict.token_ids))
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


async def test_a_verifier_that_never_tells_the_truth_ends_its_sessions_and_nothing_else():
    false = await lying_verifier("liar", verdicts(token_ids=(2**32 - 1,), accepted=0))
    # It asks again for seconds, not for a minute.
    hurried = partial(Client, patience=5.0)
    async with cluster([false], [], patience=PATIENT, make_client=hurried) as running:
        with pytest.raises(Exception, match="does not fit"):
            await running.client.generate(tokens=[1, 2], temperature=0.0, max_tokens=4)
        assert running.inference.active_sessions == 0
        assert all(link.up for link in running.pool.links())


FALSE_DRAFTS = {
    "tokens beyond the vocabulary": trees(token_ids=lambda draft: (12,) * len(draft.tree)),
    "beyond the window": trees(token_ids=(1,) * 1000, q=None),
    "a huge tree": trees(token_ids=(1,) * 50_000, parents=(-1,) * 50_000, q=None),
    "parents after their children": trees(token_ids=(1, 2), parents=(1, 0), q=None),
    "parents of nobody": trees(token_ids=(1, 2), parents=(-7, 2**31 - 1), q=None),
    "more parents than children": trees(parents=(-1, 0, 1, 2, 3, 4, 5), q=None),
    "laws over more than there is": trees(
        q=(t.SparseRow((1,) * 10_000, (1e-4,) * 10_000),), proposal=t.Proposal.SAMPLED
    ),
    "laws without end": trees(q=(t.SparseRow((1,), (1.0,)),) * 10_000, proposal=t.Proposal.SAMPLED),
    "probabilities that are no numbers": trees(
        q=lambda draft: (t.SparseRow((1, 2), (nan, -inf)),) * len(draft.tree),
        proposal=t.Proposal.SAMPLED,
    ),
    "another text": drafts(prefix_hash=lambda draft: draft.prefix_hash ^ 1),
    "a place that is none": drafts(first_position=2**32 - 1),
    "a text not yet committed": drafts(base_committed_len=2**32 - 1),
    "another epoch": drafts(epoch=lambda draft: draft.epoch + 1),
    "a time that is no number": drafts(draft_ms=nan),
    "a negative time": drafts(draft_ms=-1e30),
    "each many times": of_kind(t.Draft, lambda draft: [draft] * 200),
    "an epoch that nobody opened": of_kind(
        t.DraftOpened, lambda opened: replace(opened, epoch=2**32 - 1)
    ),
    "sessions that nobody has": drafts(session="default/nobody"),
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
    assert COMPLAINTS.get(lie, "") in caplog.text


def test_the_context_holds_what_is_asked_here():
    assert 2 + TOKENS < CONTEXT
