"""Drawn drafts: the law that is sent is the one that was drawn from, and the draft model's own."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from services.contract import types as t
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine.noise import Stream, uniform
from services.engine.port import Segment
from services.engine.sampling import History, RowContext, choose
from tests.models import tiny_model
from tests.services.drafter_kit import (
    EXACT,
    SAMPLED,
    FakeEngine,
    Harness,
    Worker,
    real_engine,
    tokens_of,
    trunk_of,
)

PROMPT = [*range(20, 45), 20, 21, 22]
EVERY_PARAMETER = t.ResolvedSampling(
    temperature=1.4,
    top_p=0.97,
    top_k=200,
    min_p=0.0005,
    frequency_penalty=0.6,
    presence_penalty=0.4,
    repetition_penalty=1.25,
    max_tokens=60,
    min_tokens=3,
    stop_token_ids=(1, 7, 50_000),
    # A few tokens lead everywhere: what is drafted repeats, and the penalties bite.
    logit_bias=(*((token, 25.0) for token in range(30, 36)), (36, -100.0), (50_001, 9.0)),
)
PARAMETERS = {
    "plain": t.ResolvedSampling(max_tokens=60),
    "cold": t.ResolvedSampling(max_tokens=60, temperature=0.4, top_p=0.8),
    "every parameter": EVERY_PARAMETER,
}


@pytest.fixture(scope="module")
def engine():
    return real_engine()


def levels(draft):
    """Row in the draft, law and candidates of each node that has some."""
    tree, parents = draft.tree, draft.tree.every_parent
    for parent, row in zip(sorted(set(parents)), tree.q, strict=True):
        below = zip(tree.token_ids, parents, strict=True)
        yield parent + 1, row, [token for token, above in below if above == parent]


def invert(law, u):
    """The first token whose cumulated mass exceeds `u` of the total."""
    reached, total = 0.0, sum(law.values())
    for token, mass in law.items():
        reached += mass
        if mass and reached > u * total:
            return token
    raise AssertionError("no token has mass")


def replayed(draft, seed):
    """The tokens that the laws of a draft and its keys give."""
    tokens = []
    chain = draft.tree.parents is None
    for node, row, own in levels(draft):
        left = dict(zip(row.token_ids, row.probabilities, strict=True))
        assert len(left) == len(row.token_ids)
        # Tokens of a chain that leave together have places of their own.
        at = (draft.position + node, 0) if chain else (draft.position, node)
        for candidate in range(len(own)):
            tokens.append(invert(left, uniform(seed, Stream.DRAFT, draft.key, *at, candidate)))
            left[tokens[-1]] = 0.0
    return tokens


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("name", PARAMETERS)
def test_replaying_the_keys_on_the_law_received_gives_every_token(engine, name, mode, count):
    harness = Harness(engine, q_top=16)
    seed = (1 << 64) - 3
    own = {"mode": mode, "sampling": PARAMETERS[name], "num_candidates": count, "seed": seed}
    drafts = harness.drafts(PROMPT, opening=5, **own)
    assert len(drafts) == (6 if count == 1 else 1)
    for draft in drafts:
        assert draft.tree.proposal is t.Proposal.SAMPLED
        assert replayed(draft, seed) == list(draft.tree.token_ids)
        for _, row, _ in levels(draft):
            assert 0 < len(row.token_ids) <= 16
            assert min(row.probabilities) > 0
            assert sum(row.probabilities) == pytest.approx(1, abs=1e-6)
    harness.core.drop_link(0)


class Wide(FakeEngine):
    """A vocabulary as wide as real ones, where a CPU takes another way to the same law."""

    vocab_size = 3000

    @staticmethod
    def logits(text):
        generator = torch.Generator().manual_seed(t.extend_hash(t.EMPTY_HASH, text) >> 1)
        return 3 * torch.randn(Wide.vocab_size, generator=generator)


@pytest.mark.parametrize("count", [1, 3])
def test_a_wide_vocabulary_cut_to_the_targets_is_drawn_from_alike(count):
    harness, prompt = Harness(Wide(), q_top=32), [1, 2, 3]
    law = replace(EVERY_PARAMETER, logit_bias=((2990, 30.0), (5, 3.0)))
    own = {"mode": t.VerifyMode.BLOCK, "sampling": law, "num_candidates": count}
    output = []
    for draft in harness.drafts(prompt, vocab_size=2500, **own):
        assert replayed(draft, 7) == list(draft.tree.token_ids)
        for _, row, own in levels(draft):
            logits = Wide.logits([*prompt, *output])[:2500]
            expected = reference_law(logits, prompt, output, law, 32)
            got = dict(zip(row.token_ids, row.probabilities, strict=True))
            assert got == pytest.approx(expected, abs=1e-5)
            output.append(own[0])
    assert len(output) == 6


class Constant(FakeEngine):
    """One law everywhere."""

    def __init__(self):
        super().__init__(capacity=10**6)

    LAW = torch.tensor([0.3, 0.2, 0.15, 0.1, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02, 0.01, 0.0])

    @staticmethod
    def logits(text):
        return Constant.LAW.log()


def p_value(observed, expected):
    """Chi-square of counts against probabilities."""
    assert set(observed) <= {key for key, p in expected.items() if p > 0}
    total = sum(observed.values())
    cells = {key: total * p for key, p in expected.items() if p > 0}
    assert min(cells.values()) > 5
    statistic = sum((observed[key] - mean) ** 2 / mean for key, mean in cells.items())
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, half))


def pairs_fit(pairs, joint):
    """Whether those of the pairs that are in `joint` are as frequent as it says."""
    total = sum(joint.values())
    inside = Counter({pair: n for pair, n in pairs.items() if pair in joint})
    return p_value(inside, {pair: p / total for pair, p in joint.items()}) > 1e-6


def drawn(count):
    """Of two hundred sessions."""
    harness = Harness(Constant(), step_tokens=10**6)
    own = {"mode": t.VerifyMode.STANDARD, "window": 60, "num_candidates": count}
    for session in range(200):
        harness.open(str(session), [1, 2], seed=session, **own)
    return harness.run()


def test_drawn_tokens_have_the_law_that_is_sent():
    drafts, law = drawn(1), Constant.LAW.tolist()
    counts = Counter(token for draft in drafts for token in draft.tree.token_ids)
    assert sum(counts.values()) == 200 * 60
    for draft in drafts:
        assert replayed(draft, int(draft.session)) == list(draft.tree.token_ids)
    assert p_value(counts, dict(enumerate(law))) > 1e-6
    pairs = Counter()
    for session in range(200):
        tokens = tokens_of(drafts, str(session))
        pairs.update(zip(tokens[::2], tokens[1::2], strict=True))
    assert pairs_fit(pairs, {(a, b): law[a] * law[b] for a in range(8) for b in range(8)})


def test_siblings_are_drawn_without_replacement():
    pairs = Counter()
    for draft in drawn(2):
        pairs.update(tuple(own) for _, _, own in levels(draft))
    law = Constant.LAW.tolist()[:7]
    joint = {(a, b): law[a] * law[b] / (1 - law[a]) for a in range(7) for b in range(7) if a != b}
    assert sum(pairs.values()) == 200 * 60
    assert all(a != b for a, b in pairs)
    assert pairs_fit(pairs, joint)


# --- the law itself ----------------------------------------------------------------


def reference_law(logits, prompt, output, law, n):
    """transformers' processors in our order, OpenAI's two penalties, cut to the n best."""
    ids = torch.tensor([[*prompt, *output]])
    scores = logits.clone()[None]
    for token, bias in law.logit_bias:
        if token < scores.shape[-1]:
            scores[0, token] += bias
    scores = RepetitionPenaltyLogitsProcessor(law.repetition_penalty)(ids, scores)
    for token, count in Counter(output).items():
        scores[0, token] -= law.frequency_penalty * count + law.presence_penalty
    if len(output) < law.min_tokens:
        scores[0, [token for token in law.stop_token_ids if token < scores.shape[-1]]] = -torch.inf
    warpers = LogitsProcessorList([TemperatureLogitsWarper(law.temperature)])
    if law.top_k:
        warpers.append(TopKLogitsWarper(law.top_k))
    warpers += [TopPLogitsWarper(law.top_p), MinPLogitsWarper(law.min_p)]
    best = warpers(ids, scores).softmax(-1)[0].topk(n)
    total = float(best.values.sum())
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {token: mass / total for token, mass in pairs if mass > 0}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", PARAMETERS)
def test_q_is_the_draft_models_own_law_as_transformers_makes_it(engine, name, count):
    harness = Harness(engine, q_top=20)
    law = replace(PARAMETERS[name], stop_token_ids=(1, 50_000), min_tokens=3)
    output = []
    rows = 0
    own = {"mode": t.VerifyMode.BLOCK, "sampling": law, "num_candidates": count}
    for draft in harness.drafts(PROMPT, **own):
        for _, row, own in levels(draft):
            with torch.no_grad():
                text = torch.tensor([[*PROMPT, *output]])
                logits = tiny_model("llama")(text).logits[0, -1]
            expected = reference_law(logits, PROMPT, output, law, 20)
            assert dict(zip(row.token_ids, row.probabilities, strict=True)) == pytest.approx(
                expected, abs=1e-4
            )
            output.append(own[0])
            rows += 1
    assert rows == 6
    harness.core.drop_link(0)


def own_samples(engine, count, mode, law):
    """What a target of the same weights chooses, each position counted from nothing."""
    text = list(PROMPT)
    for position in range(count):
        cache = engine.new_cache(len(text))
        (rows,) = engine.forward([Segment(cache, text, logits_from=len(text) - 1)])
        cache.free()
        history = History(PROMPT)
        history.extend(text[len(PROMPT) :])
        text += choose(rows, [RowContext(mode, law, 7, position, history)])
    return text[len(PROMPT) :]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mode", EXACT)
def test_a_drafter_equal_to_its_target_drafts_the_targets_own_text_under_every_parameter(
    engine, mode, count
):
    law = replace(EVERY_PARAMETER, stop_token_ids=(1,), logit_bias=EVERY_PARAMETER.logit_bias[:-1])
    truth = own_samples(engine, 20, mode, law)
    for neutral in ({"frequency_penalty": 0.0}, {"repetition_penalty": 1.0}, {"logit_bias": ()}):
        assert truth != own_samples(engine, 20, mode, replace(law, **neutral))
    harness = Harness(engine)
    harness.open("s", PROMPT, mode=mode, sampling=law, num_candidates=count)
    committed = 0
    for block in (4, 7, 3):
        for draft in harness.run():
            tokens, start = trunk_of([draft]), draft.position
            assert tokens == truth[start : start + len(tokens)]
        harness.say("s", committed, truth[committed : committed + block])
        committed += block
    harness.core.drop_link(0)


def test_penalties_follow_the_text_back_and_forth(engine):
    law = replace(EVERY_PARAMETER, stop_token_ids=(), min_tokens=0)
    harness, fresh = Harness(engine), Harness(engine)
    harness.open("s", PROMPT, mode=t.VerifyMode.GREEDY, sampling=law)
    committed = []
    for agreed in (0, 3, 6, 1):
        tail = tokens_of(harness.run())
        new = [*tail[:agreed], 40]
        harness.say("s", len(committed), new)
        committed += new
    fresh.open("s", PROMPT, mode=t.VerifyMode.GREEDY, sampling=law, output=tuple(committed))
    assert tokens_of(harness.run()) == tokens_of(fresh.run())
    harness.core.drop_link(0)
    fresh.core.drop_link(0)


def test_a_worker_says_which_methods_draw_and_which_make_trees():
    drafters = {"model": Harness().drafter, "ngram": NgramDrafter()}
    core = Worker(drafters).core
    able = ("model:sampled", "model:tree", "ngram:tree", "ngram:estimates", "ngram:rows")
    assert {*core.describe().capabilities} == {*able, *t.LATER_FORMATS}
    assert isinstance(core.describe(), t.WorkerDescription)


@pytest.mark.parametrize("mode", list(t.VerifyMode))
def test_ngram_copies_are_certain_in_every_mode(mode):
    worker = Worker({"ngram": NgramDrafter()})
    drafts = worker.drafts((1, 2, 3, 4, 1, 2, 3), mode=mode, window=4, num_candidates=3)
    trees = [draft.tree for draft in drafts]
    assert [token for tree in trees for token in tree.token_ids] == [4, 1, 2, 3]
    assert {(tree.proposal, tree.q) for tree in trees} == {(t.Proposal.ONE_HOT, None)}
