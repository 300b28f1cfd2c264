"""The coupled sampler: its own law, its independence, and its indifference to drafts."""

import random

import numpy as np
import pytest
import torch

from services.contract.types import DraftTree, ResolvedSampling, VerifyMode
from services.engine.noise import fold, word_rows, words_of
from services.engine.sampling import History, RowContext, by_batch, choose, paths
from services.verifier.rules import walk_rows
from tests.rules.chance import ALARM, p_value

torch.set_num_threads(1)
COUPLED = VerifyMode.COUPLED

# --- its law, over ten million draws -------------------------------------------------
#
# A draw costs little when many share a key: the vocabulary of one position is cut into
# blocks of eight ids, and each block is one draw from the same law of eight tokens.

LAW = torch.tensor([0.5, 0.25, 0.15, 0.06, 0.03, 0.0089, 0.001, 0.0001], dtype=torch.float64)
SIZE = len(LAW)
POSITIONS, BLOCKS = 1000, 10_000


def drawn_from(words):
    """Draws [positions, blocks] of LAW by the words [positions, blocks * SIZE] of a noise."""
    blocks = words.view(-1, SIZE)
    winners = by_batch.perturb(LAW.log().expand(len(blocks), -1), blocks).argmax(-1)
    return winners.view(len(words), -1)


def true_words(places, ids):
    return word_rows(places, ids)


def all_draws(words=true_words, positions=POSITIONS, blocks=BLOCKS, seed=2**63 + 5):
    ids = torch.arange(blocks * SIZE)
    chunks = [range(start, start + 50) for start in range(0, positions, 50)]
    return torch.cat([drawn_from(words([(seed, t) for t in chunk], ids)) for chunk in chunks])


def law_fits(draws):
    return p_value(torch.bincount(draws.flatten(), minlength=SIZE), LAW)


def independence_fits(draws):
    """Of the token at one position and at the next one, over all blocks."""
    pairs = (draws[1:] * SIZE + draws[:-1]).flatten()
    return p_value(torch.bincount(pairs, minlength=SIZE**2), torch.outer(LAW, LAW).flatten())


def test_ten_million_draws_follow_the_law_and_neighbouring_positions_are_independent():
    draws = all_draws()
    assert draws.numel() == 10_000_000
    assert law_fits(draws) > ALARM
    assert independence_fits(draws) > ALARM


@pytest.mark.parametrize("wide", [0, 1 << 40])
def test_choose_gives_those_draws(wide, monkeypatch):
    monkeypatch.setattr(paths, "WIDE", wide)
    vocab, seed = BLOCKS * SIZE, 2**63 + 5
    positions = range(0, POSITIONS, 91)
    expected = drawn_from(word_rows([(seed, t) for t in positions], torch.arange(vocab)))
    rng = random.Random(3)
    for row, position in enumerate(positions):
        block = rng.randrange(BLOCKS)
        logits = torch.full((1, vocab), -torch.inf)
        logits[0, block * SIZE : (block + 1) * SIZE] = LAW.log().float()
        [token] = choose(logits, [RowContext(COUPLED, ResolvedSampling(), seed, position)])
        assert token == block * SIZE + int(expected[row, block])


def test_noise_reused_at_two_positions_fails_the_test_of_independence():
    def reused(places, ids):
        return word_rows([(seed, position // 2) for seed, position in places], ids)

    draws = all_draws(reused, positions=100, blocks=1000)
    assert independence_fits(draws) < ALARM
    assert law_fits(draws) > ALARM  # each position by itself looks right


def test_one_noise_for_all_tokens_fails_the_test_of_the_law():
    def one(places, ids):
        return word_rows(places, ids // 2)

    assert law_fits(all_draws(one, positions=50, blocks=1000)) < ALARM


# --- rounding: a wide vocabulary, nearly all of whose mass is on one token -----------

WIDE_VOCABULARY = 49_152
CERTAIN = 40_000
SAMPLES, WIDE_SEED = 2500, 5


def peaked_logits():
    """All tokens but one together have 2e-6 of the mass."""
    logits = torch.full((WIDE_VOCABULARY,), -24.0)
    logits[CERTAIN] = 0.0
    return logits


def others_fit(tokens):
    """Whether tokens other than the certain one are as rare as they should be."""
    law = torch.softmax(peaked_logits().double(), dim=-1)[CERTAIN]
    counts = [tokens.count(CERTAIN), len(tokens) - tokens.count(CERTAIN)]
    return p_value(counts, torch.stack([law, 1 - law]))


def faulty_choices(exponential):
    """argmin E/p with a faulty E of the words, in float32."""
    mass = torch.softmax(peaked_logits(), dim=-1).numpy()
    folded = fold(np.arange(WIDE_VOCABULARY))
    with np.errstate(divide="ignore"):
        return [
            int((exponential(words_of(WIDE_SEED, position, folded)) / mass).argmin())
            for position in range(SAMPLES)
        ]


def rounds_to_one(words):
    """U in float32 is 1 for the last 128 words, and -log U is then 0."""
    return -np.log((words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32))


def words_of_24_bits(words):
    """U as float32 generators give it, a multiple of 2**-24: 0 is among them."""
    return -np.log1p(-((words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)))


def test_a_certain_token_of_a_wide_vocabulary_is_not_displaced_by_rounding():
    rows = [
        RowContext(COUPLED, ResolvedSampling(), WIDE_SEED, position) for position in range(SAMPLES)
    ]
    assert others_fit(choose(peaked_logits().expand(SAMPLES, -1), rows)) > ALARM


@pytest.mark.parametrize("fault", [rounds_to_one, words_of_24_bits])
def test_a_noise_that_rounds_to_its_end_emits_arbitrary_tokens(fault):
    tokens = faulty_choices(fault)
    assert others_fit(tokens) < ALARM
    assert len(set(tokens)) > 2


# --- whatever the draft, the emitted text is the undrafted sample ---------------------

VOCAB = 12
SESSIONS, LENGTH = 1000, 100
TABLE = torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(8)) * 1.5
LAWS = (
    ResolvedSampling(),
    ResolvedSampling(temperature=0.6, top_p=0.8),
    ResolvedSampling(temperature=1.3, top_k=5, min_p=0.02),
    ResolvedSampling(logit_bias=((3, 1.5),), min_tokens=40, stop_token_ids=(0,)),
    ResolvedSampling(top_p=0.95, frequency_penalty=0.4, repetition_penalty=1.2),
)
PROMPT = (1, 2)


def next_logits(texts):
    """Logits [R, V] that depend on the last two tokens of each text."""
    return TABLE[[text[-2] for text in texts], [text[-1] for text in texts]]


def contexts_at(session, history, position, path=()):
    return RowContext(COUPLED, LAWS[session % len(LAWS)], session, position, history, path)


@pytest.fixture(scope="module")
def undrafted():
    """SESSIONS texts of LENGTH tokens, chosen one by one."""
    texts = [list(PROMPT) for _ in range(SESSIONS)]
    histories = [History(PROMPT) for _ in range(SESSIONS)]
    for position in range(LENGTH):
        rows = [contexts_at(i, history, position) for i, history in enumerate(histories)]
        for text, history, token in zip(
            texts, histories, choose(next_logits(texts), rows), strict=True
        ):
            text.append(token)
            history.extend([token])
    return [text[len(PROMPT) :] for text in texts]


def random_draft(rng, right):
    """A chain or tree, partly of the `right` continuation, partly of anything."""
    size, parents, levels = rng.randrange(9), [], []
    as_tree = rng.random() < 0.5
    for node in range(size):
        parent = rng.randrange(-1, node) if as_tree else node - 1
        parents.append(parent)
        levels.append(levels[parent] + 1 if parent >= 0 else 0)
    tokens = tuple(
        right[level] if level < len(right) and rng.random() < 0.8 else rng.randrange(VOCAB)
        for level in levels
    )
    return DraftTree(tokens, tuple(parents) if as_tree else None)


def path_to(tree, row):
    """The draft tokens from the root to a row."""
    if tree.parents is None:
        return tree.token_ids[:row]
    tokens = []
    node = row - 1
    while node >= 0:
        tokens.append(tree.token_ids[node])
        node = tree.parents[node]
    return tuple(reversed(tokens))


def verified_round(outputs, histories, trees):
    """What every session emits after one block."""

    def chosen(places):
        prefixes = [path_to(trees[i], row) for i, row in places]
        texts = [
            (*PROMPT, *outputs[i], *path) for (i, _), path in zip(places, prefixes, strict=True)
        ]
        rows = [
            contexts_at(i, histories[i], len(outputs[i]) + len(path), path)
            for (i, _), path in zip(places, prefixes, strict=True)
        ]
        return choose(next_logits(texts), rows)

    walks = walk_rows(trees, chosen)
    return [
        [*(tree.token_ids[node] for node in walk.path), walk.final_token]
        for tree, walk in zip(trees, walks, strict=True)
    ]


def test_a_hundred_thousand_tokens_are_the_undrafted_sample_whatever_the_draft(undrafted):
    rng = random.Random(6)
    outputs = [[] for _ in range(SESSIONS)]
    histories = [History(PROMPT) for _ in range(SESSIONS)]
    rounds = 0
    while min(map(len, outputs)) < LENGTH:
        # Sessions that are done go on with a text of their own, unread.
        trees = [
            random_draft(rng, undrafted[i][len(output) :]) if len(output) < LENGTH else DraftTree()
            for i, output in enumerate(outputs)
        ]
        emitted = verified_round(outputs, histories, trees)
        for output, history, tokens in zip(outputs, histories, emitted, strict=True):
            output += tokens
            history.extend(tokens)
        rounds += 1
    assert [output[:LENGTH] for output in outputs] == undrafted
    assert sum(map(len, undrafted)) == 100_000
    assert rounds < LENGTH * 0.7  # drafts were accepted, so paths were really walked
