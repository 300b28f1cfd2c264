"""Every sampling parameter, position by position, against transformers' own processors."""

import random
from dataclasses import replace

import pytest
import torch
from transformers.generation import logits_process as hf

from services.contract.types import ResolvedSampling, VerifyMode
from services.engine.sampling import (
    NO_CHOICE,
    History,
    RowContext,
    best,
    choose,
    coupled_best,
    forbids_all,
    log_law,
    paths,
    top_law,
)

torch.set_num_threads(1)
COUPLED, GREEDY, BLOCK = VerifyMode.COUPLED, VerifyMode.GREEDY, VerifyMode.BLOCK


@pytest.fixture(params=["row by row", "the batch at once"])
def either_path(request, monkeypatch):
    monkeypatch.setattr(paths, "WIDE", 0 if request.param == "row by row" else 1 << 40)


def openai_penalties(scores, output, sampling):
    """mu[j] -= c[j] * frequency + (c[j] > 0) * presence: their documentation, word for word."""
    scores = scores.clone()
    for token in set(output):
        if token < len(scores):
            scores[token] -= output.count(token) * sampling.frequency_penalty
            scores[token] -= float(output.count(token) > 0) * sampling.presence_penalty
    return scores


def reference_scores(logits, prompt, output, sampling):
    """Scores [1, V] after the processors that bear on every mode."""
    text = torch.tensor([[*prompt, *output]])
    scores = logits[None].clone()
    if sampling.logit_bias:
        scores = hf.SequenceBiasLogitsProcessor([[[t], b] for t, b in sampling.logit_bias])(
            text, scores
        )
    scores = hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(text, scores)
    scores = openai_penalties(scores[0], list(output), sampling)[None]
    if sampling.stop_token_ids:
        scores = hf.MinNewTokensLengthLogitsProcessor(
            len(prompt), sampling.min_tokens, list(sampling.stop_token_ids)
        )(text, scores)
    if sampling.allowed_token_ids:
        others = {*range(len(logits))} - {*sampling.allowed_token_ids}
        scores = hf.SuppressTokensLogitsProcessor(sorted(others), device="cpu")(text, scores)
    return without_bad_words(scores, output, sampling.bad_words)


def without_bad_words(scores, output, words):
    """As vLLM, transformers' processor sees the output alone."""
    known = [list(word) for word in words if max(word) < scores.shape[-1]]
    if not known:
        return scores
    text = torch.tensor([output], dtype=torch.long)
    return hf.NoBadWordsLogitsProcessor(known, eos_token_id=None)(text, scores)


def random_words(rng, vocab):
    """Of tokens that outputs are made of, so that some are about to be ended."""
    few = min(8, vocab - 1)
    return tuple(
        {tuple(rng.randrange(few) for _ in range(rng.choice([1, 2, 2, 3]))) for _ in range(6)}
    )


def reference_law(logits, prompt, output, sampling):
    """The law transformers would draw the token after prompt + output from, [V]."""
    text = torch.tensor([[*prompt, *output]])
    scores = reference_scores(logits, prompt, output, sampling)
    scores = hf.TemperatureLogitsWarper(sampling.temperature)(text, scores)
    if sampling.top_k:
        scores = hf.TopKLogitsWarper(sampling.top_k)(text, scores)
    if sampling.top_p < 1.0:
        scores = hf.TopPLogitsWarper(sampling.top_p)(text, scores)
    if sampling.min_p > 0.0:
        scores = hf.MinPLogitsWarper(sampling.min_p)(text, scores)
    return torch.softmax(scores[0], dim=-1)


def random_sampling(rng, vocab):
    """About half of the parameters on, in any combination."""
    some = {
        "temperature": rng.choice([0.3, 0.7, 1.4]),
        "top_k": rng.choice([1, 5, vocab // 2, vocab + 9]),
        "top_p": rng.choice([0.3, 0.9, 0.99]),
        "min_p": rng.choice([0.01, 0.1, 0.5]),
        "frequency_penalty": rng.choice([-1.5, 0.4, 2.0]),
        "presence_penalty": rng.choice([-0.7, 0.9]),
        "repetition_penalty": rng.choice([0.8, 1.3, 2.0]),
        "min_tokens": rng.choice([1, 4, 50]),
        "logit_bias": tuple((t, rng.uniform(-5, 5)) for t in rng.sample(range(vocab), 6)),
        # The last token, which ends no bad word and is no stop, stays: something is allowed.
        "allowed_token_ids": (*sorted(rng.sample(range(vocab - 1), vocab // 2)), vocab - 1),
        "bad_words": random_words(rng, vocab),
    }
    kept = {name: value for name, value in some.items() if rng.random() < 0.5}
    return ResolvedSampling(stop_token_ids=tuple(rng.sample(range(vocab - 1), 3)), **kept)


def random_prefixes(rng, vocab):
    """A prompt, an output, and the draft paths to the rows of a random chain or tree."""
    prompt = [rng.randrange(vocab) for _ in range(rng.randrange(1, 12))]
    # Few different tokens, so that counts above 1 are common.
    output = [rng.randrange(min(8, vocab)) for _ in range(rng.randrange(0, 7))]
    tree = rng.random() < 0.5
    row_paths = [()]
    for _ in range(rng.randrange(0, 8)):
        parent = rng.choice(row_paths) if tree else row_paths[-1]
        row_paths.append((*parent, rng.randrange(min(8, vocab))))
    return prompt, output, row_paths


def history_of(prompt, output):
    history = History(prompt)
    history.extend(output)
    return history


def block_rows(rng, vocab, mode, seed=7):
    """Rows of one block with the whole prefix of each as (prompt, output)."""
    sampling = random_sampling(rng, vocab)
    prompt, output, row_paths = random_prefixes(rng, vocab)
    history = history_of(prompt, output)
    rows = [
        RowContext(mode, sampling, seed, len(output) + len(path), history, path)
        for path in row_paths
    ]
    return rows, [(prompt, [*output, *path]) for path in row_paths]


def random_logits(rng, rows, vocab):
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return torch.randn(rows, vocab, generator=generator) * rng.choice([1.0, 4.0])


@pytest.mark.parametrize("case", range(60))
def test_every_row_has_the_law_of_transformers_for_its_own_prefix(case, either_path):
    rng = random.Random(case)
    vocab = rng.choice([9, 60, 1500])
    rows, prefixes = block_rows(rng, vocab, rng.choice([BLOCK, COUPLED]))
    logits = random_logits(rng, len(rows), vocab)
    ours = log_law(logits, rows).exp()
    for i, (prompt, output) in enumerate(prefixes):
        expected = reference_law(logits[i], prompt, output, rows[i].sampling)
        assert torch.equal(ours[i] > 0, expected > 0)
        torch.testing.assert_close(ours[i], expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("case", range(30))
def test_greedy_takes_the_argmax_of_transformers_scores(case, either_path):
    rng = random.Random(1000 + case)
    vocab = rng.choice([9, 60, 1500])
    rows, prefixes = block_rows(rng, vocab, GREEDY)
    logits = random_logits(rng, len(rows), vocab)
    expected = [
        reference_scores(logits[i], prompt, output, rows[i].sampling)[0]
        for i, (prompt, output) in enumerate(prefixes)
    ]
    assert choose(logits, rows) == [int(scores.argmax()) for scores in expected]
    found = best(logits, rows, 4)
    for ids, scores in zip(found, expected, strict=True):
        values, tokens = torch.topk(scores, 4)
        assert ids.tolist() == tokens.where(values.isfinite(), NO_CHOICE).tolist()


@pytest.mark.parametrize("case", range(30))
def test_rows_of_many_blocks_in_one_batch_equal_rows_alone(case, either_path):
    rng = random.Random(2000 + case)
    vocab = rng.choice([9, 300])
    rows = []
    for seed in range(4):
        rows += block_rows(rng, vocab, rng.choice([GREEDY, COUPLED]), seed)[0]
    logits = random_logits(rng, len(rows), vocab)
    before = logits.clone()
    alone = [(logits[i : i + 1], [row]) for i, row in enumerate(rows)]
    assert choose(logits, rows) == [choose(*one)[0] for one in alone]
    assert torch.equal(log_law(logits, rows), torch.cat([log_law(*one) for one in alone]))
    assert torch.equal(
        coupled_best(logits, rows, 3), torch.cat([coupled_best(*one, 3) for one in alone])
    )
    for ours, theirs in zip(
        top_law(logits, rows, 5),
        zip(*[top_law(*one, 5) for one in alone], strict=True),
        strict=True,
    ):
        assert torch.equal(ours, torch.cat(theirs))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("case", range(20))
def test_both_paths_are_the_same_function(case, monkeypatch):
    rng = random.Random(3000 + case)
    vocab = rng.choice([9, 700, 5000])
    rows = [row for seed in range(6) for row in block_rows(rng, vocab, COUPLED, seed)[0]]
    logits = random_logits(rng, len(rows), vocab)
    found = []
    for wide in (0, 1 << 40):
        monkeypatch.setattr(paths, "WIDE", wide)
        ids, mass = top_law(logits, rows, 8)
        found.append((choose(logits, rows), coupled_best(logits, rows, 4).tolist(), ids.tolist()))
        found.append((log_law(logits, rows), mass))
    assert found[0] == found[2]
    for ours, theirs in zip(found[1], found[3], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert torch.equal(ours > -torch.inf, theirs > -torch.inf)


FIXED = {"logit_bias": ((0, 3.0), (2, -1.0)), "min_tokens": 2, "stop_token_ids": (3, 5)}
FIXED |= {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.25}
FIXED |= {"temperature": 0.8, "min_p": 0.01}


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_row_gives_no_choice_under_every_parameter(mode, broken, either_path):
    rng = random.Random(5)
    row = RowContext(mode, ResolvedSampling(**FIXED), 1, 0, history_of([1, 2], [4]), (2,))
    logits = random_logits(rng, 3, 40)
    whole = choose(logits, [row] * 3)
    # Token 4 is penalised; it stays broken, and its neighbours do not notice.
    logits[1, 4] = broken
    assert choose(logits, [row] * 3) == [whole[0], NO_CHOICE, whole[2]]
    assert best(logits, [row] * 3, 2)[1].tolist() == [NO_CHOICE] * 2
    assert coupled_best(logits, [row] * 3, 2)[1].tolist() == [NO_CHOICE] * 2
    assert log_law(logits, [row] * 3).isnan().all(-1).tolist() == [False, True, False]
    assert [part[1].tolist() for part in top_law(logits, [row] * 3, 2)] == [[0, 0], [0.0, 0.0]]


def test_ids_beyond_a_smaller_vocabulary_are_ignored(either_path):
    beyond = ResolvedSampling(**{**FIXED, "logit_bias": ((0, 3.0), (2, -1.0), (6, 9.0), (99, 9.0))})
    beyond = ResolvedSampling(
        **{**FIXED, "logit_bias": beyond.logit_bias, "stop_token_ids": (3, 5, 6, 77)}
    )
    beyond = replace(beyond, allowed_token_ids=(0, 1, 2, 3, 4, 90), bad_words=((6, 0), (2, 91)))
    within = ResolvedSampling(**FIXED, allowed_token_ids=(0, 1, 2, 3, 4))
    logits = random_logits(random.Random(3), 2, 6)
    for mode in (GREEDY, COUPLED):
        ours = RowContext(mode, beyond, 1, 1, history_of([1, 6, 50], [4, 6]), (2, 6, 1 << 40))
        same = RowContext(mode, within, 1, 1, history_of([1], [4]), (2,))
        assert torch.equal(log_law(logits, [ours, same]), log_law(logits, [same, ours]))
        assert choose(logits[:1], [ours]) == choose(logits[:1], [same])


def test_a_row_without_a_history_counts_its_path_alone(either_path):
    logits = torch.tensor([[1.0, 1.0, 1.0]])
    row = RowContext(BLOCK, ResolvedSampling(presence_penalty=1.0), 0, 1, None, (1,))
    expected = torch.log_softmax(torch.tensor([[1.0, 0.0, 1.0]]), dim=-1)
    torch.testing.assert_close(log_law(logits, [row]), expected)


def test_a_prompt_counts_for_repetition_and_for_nothing_else(either_path):
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    history = history_of([0, 1, 0], [])
    others = ResolvedSampling(frequency_penalty=1.0, presence_penalty=1.0)
    row = RowContext(BLOCK, others, 0, 0, history)
    torch.testing.assert_close(log_law(logits, [row]), torch.log_softmax(logits, dim=-1))
    row = RowContext(BLOCK, ResolvedSampling(repetition_penalty=2.0), 0, 0, history)
    expected = torch.log_softmax(torch.tensor([[1.0, -4.0, 1.0]]), dim=-1)
    torch.testing.assert_close(log_law(logits, [row]), expected)


def test_a_forbidden_stop_id_is_not_brought_back_by_a_bias(either_path):
    sampling = ResolvedSampling(logit_bias=((1, 100.0),), min_tokens=1, stop_token_ids=(1,))
    logits = torch.zeros(1, 3)
    for mode in (GREEDY, COUPLED):
        assert choose(logits, [RowContext(mode, sampling, 0, 0)]) != [1]
        assert choose(logits, [RowContext(mode, sampling, 0, 1)]) == [1]


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
def test_the_last_token_of_a_bad_word_is_forbidden_behind_the_others_along_a_path(
    mode, either_path
):
    sampling = ResolvedSampling(bad_words=((5, 6, 1), (4,)))
    logits = torch.tensor([[0.0, 90.0, 60.0, 0.0, 95.0, 0.0, 0.0]])
    for prompt, output, path, chosen in (
        ([5, 6], [], (), 1),  # a prompt is no part of it
        ([5], [6], (), 1),
        ([0], [5, 6], (), 2),
        ([0], [5], (6,), 2),
        ([0], [], (5, 6), 2),
        ([0], [5, 6], (0,), 1),
        ([0], [6], (), 1),
    ):
        row = RowContext(mode, sampling, 0, len(output) + len(path), history_of(prompt, output))
        assert choose(logits, [replace(row, path=path)]) == [chosen]


def test_a_history_taken_back_forgets_the_beginning_of_a_bad_word(either_path):
    sampling = ResolvedSampling(bad_words=((5, 6, 1),))
    logits, history = torch.tensor([[0.0, 9.0, 8.0, 0.0, 0.0, 0.0, 0.0]]), history_of([0], [5, 6])
    assert choose(logits, [RowContext(GREEDY, sampling, 0, 2, history)]) == [2]
    history.rewind(1)
    history.extend([3])
    assert choose(logits, [RowContext(GREEDY, sampling, 0, 2, history)]) == [1]


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
def test_parameters_that_leave_no_token_give_no_choice(mode, either_path):
    logits = torch.zeros(1, 4)
    for nothing in (
        {"allowed_token_ids": (1,), "bad_words": ((1,),)},
        {"allowed_token_ids": (1, 2), "min_tokens": 1, "stop_token_ids": (1, 2)},
        {"bad_words": ((0,), (1,), (2,), (3,))},
    ):
        row = RowContext(mode, ResolvedSampling(**nothing), 0, 0)
        assert choose(logits, [row]) == [NO_CHOICE]
        assert forbids_all(logits[0], row)


def test_a_bias_brings_back_no_token_beside_the_allowed_ones(either_path):
    sampling = ResolvedSampling(logit_bias=((1, 100.0),), allowed_token_ids=(0, 2))
    law = log_law(torch.zeros(1, 3), [RowContext(BLOCK, sampling, 0, 0)]).exp()
    torch.testing.assert_close(law, torch.tensor([[0.5, 0.0, 0.5]]))
