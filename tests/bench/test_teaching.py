"""What `research.teaching` computes on a GPU is what the trainings compute, tried on a CPU."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from itertools import accumulate, chain, islice

import numpy as np
import pytest
import torch

from research.teaching.__main__ import allowed, frequent, parser, read_prompts, teach
from research.teaching.lessons import Drafting, lesson_of, scores_of, widened
from research.teaching.ngrams import cut_laws, lessons_of
from research.teaching.pool import Pool, Shelf
from research.teaching.target import Target
from research.teaching.writing import CONTEXT, Pen, Plan
from services.contract.errors import StartError
from services.engine.native.loading import read_folder
from services.engine.ngram_file import ORDERS, code_of, extend_key
from services.engine.spec import ModelSpec
from services.training.distill import learning
from services.training.distill.target import read_target
from services.training.distill.texts import LAW_TOKENS, Text
from services.training.eagle import learner as one_by_one
from services.training.eagle.head import fresh_head, shape_of
from services.training.eagle.lessons import columns_of
from services.training.eagle.lessons import lesson_of as one_by_one_lesson
from services.training.eagle.stored import HeadTarget, read_head, save_head
from services.training.ngrams import laws as laws_module
from services.training.ngrams.laws import learn_laws
from tests.models import tiny_model_folder

LAYERS = (0, 1, 2)
IDS = torch.arange(0, 320, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def described(folder):
    return read_target(str(folder))


@pytest.fixture(scope="module")
def model(folder):
    return read_folder(folder, ModelSpec(str(folder)))


@pytest.fixture(scope="module")
def target(model):
    return Target(model, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def head(model):
    return fresh_head(shape_of(model.config, LAYERS, len(IDS)), model, IDS, seed=3)


@pytest.fixture
def plan(described):
    dialogue = described.dialogue
    return Plan(dialogue, dialogue.after[:1], prompt_tokens=12, answer_tokens=16, room=64)


def texts(*lengths: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(len(lengths))
    rows = torch.randint(1, 320, (len(lengths), max(lengths)), generator=chance)
    return rows * (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


# --- The target ------------------------------------------------------------------------


@torch.no_grad()
def test_a_target_computes_what_its_model_does(target, model) -> None:
    tokens = texts(11, 11)
    wanted = model(tokens, output_hidden_states=True)
    states, last = target.read(tokens, LAYERS)
    width = target.embeddings.shape[1]
    for place, layer in enumerate(LAYERS[:-1]):
        mine = states[..., place * width : (place + 1) * width]
        torch.testing.assert_close(mine, wanted.hidden_states[layer], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last @ target.outputs.T, wanted.logits, rtol=1e-4, atol=1e-4)
    cache = target.cache(2, 11)
    for place in range(11):
        logits = target.step(cache, tokens[:, place], place)
        torch.testing.assert_close(logits, wanted.logits[:, place], rtol=1e-4, atol=1e-4)


# --- Writing ---------------------------------------------------------------------------


@torch.no_grad()
def test_greedy_answers_are_those_of_the_model(target, model, plan) -> None:
    prompts = [[*plan.dialogue.before, 40, 41, 42], [*plan.dialogue.before, 50]]
    wave = Pen(target, plan, batch=4, seed=1).answers(prompts, 0.0)
    for row, prompt in enumerate(prompts):
        known = list(prompt)
        while len(known) - len(prompt) < plan.answer_tokens:
            known.append(int(model(torch.tensor([known])).logits[0, -1].argmax()))
            if known[-1] in plan.ends:
                break
        assert int(wave.starts[row]) == len(prompt)
        assert wave.tokens[row, : int(wave.ends[row])].tolist() == known
        assert wave.tokens[row, int(wave.ends[row]) :].sum() == 0


@torch.no_grad()
def test_a_wave_keeps_what_the_target_said_before_each_token(target, model, plan) -> None:
    wave = Pen(target, plan, batch=6, seed=2).answers([list(plan.dialogue.before)] * 6)
    assert len(wave.texts) == int((wave.ends - wave.starts).sum())
    contexts = wave.contexts()
    for row in range(0, len(wave.texts), 7):
        text, place = int(wave.texts[row]), int(wave.places[row])
        before = wave.tokens[text, :place]
        shares = model(before[None]).logits[0, -1].softmax(-1)
        best = shares.topk(wave.ids.shape[1])
        torch.testing.assert_close(wave.chances[row].float(), best.values, rtol=1e-2, atol=1e-4)
        assert contexts[row].tolist() == before[-CONTEXT:].flip(0).tolist()
    assert float(wave.mass.sum()) == pytest.approx(len(wave.texts), rel=1e-4)


def test_own_prompts_are_closed_as_the_chat_template_does(target, plan) -> None:
    wave = Pen(target, plan, batch=8, seed=3).own([[], [60, 61]])
    before, after = list(plan.dialogue.before), list(plan.dialogue.after)
    for line, start, end in zip(wave.tokens.tolist(), wave.starts, wave.ends, strict=True):
        assert line[: len(before)] == before
        assert line[int(start) - len(after) : int(start)] == after
        words = int(start) - len(after) - len(before)
        assert words <= plan.prompt_tokens + 2
        assert 0 < int(end - start) <= plan.answer_tokens


def test_seeds_draw_other_texts_and_warm_ones_are_drawn_by_chance(target, plan) -> None:
    beginning = [list(plan.dialogue.before)] * 40
    torch.manual_seed(5)
    pen = Pen(target, plan, batch=40, seed=5)
    drawn, greedy = pen.answers(beginning, 1.0), pen.answers(beginning, 0.0)
    first = int(drawn.starts[0])
    assert len(set(drawn.tokens[:, first].tolist())) > 5
    assert len({tuple(line) for line in greedy.tokens.tolist()}) == 1


def test_a_text_whose_prompt_contains_an_excluded_one_is_left_out(target, plan, described) -> None:
    pen = Pen(target, plan, batch=2, seed=3)
    words = [described.encode("the sum of two"), described.encode("something else")]
    wave = pen.answers([described.dialogue.prompt(one) for one in words], 0.0)
    left = allowed(wave, described, ["Sum  of TWO"])
    assert left.ends.tolist() == [0, int(wave.ends[1])]
    pool = Pool()
    pool.add(left)
    assert len(pool.ends) == 1
    assert pool.distributions == int(wave.ends[1] - wave.starts[1])
    assert len(pool.ids) == len(pool.contexts) == pool.distributions


def test_prompts_that_do_not_fit_or_are_excluded_are_left_out(tmp_path, described) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("a b", "c d e", "x" * 900)))
    room = len(described.dialogue.prompt(described.encode("c d e"))) + 3
    [kept] = read_prompts(path, described, ["A  b"], room)
    assert kept == described.dialogue.prompt(described.encode("c d e"))


# --- Laws ------------------------------------------------------------------------------


def one_by_one_laws(places, most: int):
    """What of each order is kept, context by context: {(key, tokens): [(id, chance), ...]}."""
    orders, worths = [], []
    for order in range(ORDERS):
        seen: dict[int, list] = {}
        above: dict[int, int] = {}
        for context, law in places:
            keys = list(accumulate(context[: order + 1], extend_key, initial=0))
            seen.setdefault(keys[-1], []).append(law)
            above[keys[-1]] = keys[-2]
        laws = {}
        for key, told in sorted(seen.items()):
            sums: dict[int, float] = {}
            for token, chance in chain.from_iterable(told):
                sums[token] = sums.get(token, 0.0) + chance
            means = {token: total / len(told) for token, total in sorted(sums.items())}
            likely = [one for one in means.items() if one[1] >= laws_module.LEAST]
            best = sorted(likely, key=lambda one: -one[1])[: laws_module.KEPT]
            laws[key] = sorted(best)
            shorter = dict(orders[-1][above[key]]) if order else {}
            gains = (c * math.log(c / max(0.003, shorter.get(t, 0.0))) for t, c in laws[key])
            size = 6 + 3 * len(laws[key])
            worths.append(((len(told) - 0.6) * sum(gains) / size, size, order, key))
        orders.append(laws)
    kept, taken = [set() for _ in range(ORDERS)], 0
    for worth, size, order, key in sorted(worths, key=lambda one: -one[0]):
        taken += size
        if taken > most or worth <= 0:
            break
        kept[order].add(key)
    return [
        {key: law for key, law in laws.items() if key in kept[n]} for n, laws in enumerate(orders)
    ]


@pytest.mark.parametrize("most", [2000, 20_000, 10_000_000])
def test_laws_are_those_that_are_worth_most(monkeypatch, most) -> None:
    monkeypatch.setattr(laws_module, "_PART", 1 << 10)
    chance, vocabulary = np.random.default_rng(0), 300
    written, places = [], []
    for number in range(30):
        tokens = (chance.zipf(1.5, 60) % vocabulary).astype(np.int32)
        prefixes = np.arange(5, 60, dtype=np.int32)
        best = np.stack([chance.permutation(vocabulary)[:LAW_TOKENS] for _ in prefixes])
        logs = np.log(chance.dirichlet(np.full(LAW_TOKENS, 0.3), len(prefixes)) + 1e-9)
        logs = np.sort(logs, -1)[:, ::-1].astype(np.float16)
        written.append(Text(number, tokens, prefixes, best.astype(np.int32), logs))
        for row, prefix in enumerate(prefixes.tolist()):
            told = zip(best[row].tolist(), np.exp(logs[row].astype(np.float64)), strict=True)
            context = [int(tokens[prefix - 1 - back]) for back in range(ORDERS)]
            places.append((context, list(islice(told, 16))))
    found = learn_laws(written, vocabulary, most)
    for wanted, law in zip(one_by_one_laws(places, most), found, strict=True):
        assert wanted.keys() == set(law.keys)
        assert list(law.keys) == sorted(law.keys)
        assert [t for law in wanted.values() for t, _ in law] == list(law.ids)
        assert bytes(code_of(c) for law in wanted.values() for _, c in law) == law.codes


def test_contexts_that_were_seen_too_seldom_are_left_out() -> None:
    contexts = torch.tensor([[1, 2, 3, 4]] * 2 + [[1, 2, 3, 5], [9, 2, 3, 4]])
    ids, chances = torch.tensor([[7, 8]] * 4), torch.tensor([[0.7, 0.2]] * 4)
    kept = laws_module.mean_laws(contexts, ids, chances, 300, 10_000, 2)
    assert [one.counts.tolist() for one in kept[:1]] == [[3]]
    assert kept[0].lengths.tolist() == [2]
    once = laws_module.mean_laws(contexts, ids, chances, 300, 10_000)
    assert once[0].counts.tolist() in ([3, 1], [1, 3])


# --- Heads -----------------------------------------------------------------------------


@torch.no_grad()
def test_steps_are_those_of_the_training_of_one_text_after_the_other(target, head) -> None:
    tokens, lengths, starts = texts(14, 9), [14, 9], [5, 4]
    lesson = lesson_of(target, LAYERS, IDS, tokens, torch.tensor(starts), torch.tensor(lengths))
    written = [
        Text(
            row,
            tokens[row, :length].numpy().astype(np.int32),
            np.arange(start, length, dtype=np.int32),
            np.zeros((length - start, LAW_TOKENS), dtype=np.int32),
            np.zeros((length - start, LAW_TOKENS), dtype=np.float16),
        )
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    states, _ = target.read(tokens, LAYERS)
    alone = one_by_one_lesson(written, lambda n, count: states[n, :count], columns_of(IDS, 320))
    assert len(lesson.rows) == len(alone.rows)
    steps = zip(
        Drafting(head, lesson).steps(3),
        one_by_one.Drafting(head, target.embeddings, alone).steps(3),
        strict=True,
    )
    for step, (features, wanted) in enumerate(steps):
        mine = features[lesson.texts, lesson.rows]
        there = alone.offsets >= step
        torch.testing.assert_close(mine[there], wanted[alone.rows[there]], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_row_learns_what_the_target_says_after_its_token(target, head, model) -> None:
    tokens = texts(12)
    lesson = lesson_of(target, LAYERS, IDS, tokens, torch.tensor([5]), torch.tensor([12]))
    shares = model(tokens).logits[0].softmax(-1)
    assert lesson.rows.tolist() == list(range(3, 10))
    torch.testing.assert_close(lesson.shares, shares[4:11][:, IDS], rtol=1e-4, atol=1e-5)
    best = shares[4:11].argmax(-1)
    assert lesson.best.tolist() == torch.where(best % 2 == 0, best // 2, -1).tolist()
    scores = scores_of(head, lesson, 3)
    assert [score.positions for score in scores] == [7, 7, 7]


def test_the_distance_is_that_of_the_training() -> None:
    chance = torch.Generator().manual_seed(1)
    logits, p = torch.randn(5, 30, generator=chance), torch.rand(5, 30, generator=chance)
    p = 0.9 * p / p.sum(-1, keepdim=True)
    columns = torch.arange(30).expand(5, -1)
    torch.testing.assert_close(
        learning.distance(logits, None, p, 0.75), learning.distance(logits, columns, p, 0.75)
    )


@torch.no_grad()
def test_a_wider_head_drafts_the_same_of_the_tokens_it_knew(target, head) -> None:
    ids = torch.cat((IDS[20:], torch.arange(1, 40, 2))).sort().values
    wide = widened(head, IDS, ids, target.outputs, 2 * head.shape.intermediate)
    assert wide.shape == replace(
        head.shape, tokens=len(ids), intermediate=2 * head.shape.intermediate
    )
    features = torch.randn(6, head.shape.width, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        wide.logits(features)[:, ids % 2 == 0], head.logits(features)[:, 20:]
    )
    lesson = lesson_of(target, LAYERS, ids, texts(12), torch.tensor([5]), torch.tensor([12]))
    for mine, wanted in zip(
        Drafting(wide, lesson).steps(3), Drafting(head, lesson).steps(3), strict=True
    ):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


def test_a_new_token_begins_as_the_head_maps_the_targets_rows(target, head) -> None:
    # A head whose rows are twice the target's maps every row to twice itself.
    doubled = copy.deepcopy(head)
    with torch.no_grad():
        doubled.lm_head.weight.copy_(2 * target.outputs[IDS])
    inner = head.shape.intermediate
    wide = widened(doubled, IDS, torch.tensor([1, 2, 5]), target.outputs, inner)
    torch.testing.assert_close(
        wide.lm_head.weight, 2 * target.outputs[[1, 2, 5]], rtol=1e-3, atol=1e-3
    )


def test_the_head_gets_the_tokens_with_most_of_the_mass() -> None:
    mass = torch.tensor([0.0, 5.0, 1.0, 0.5, 3.0], dtype=torch.float64)
    assert frequent(mass, 3, [0]).tolist() == [0, 1, 4]


# --- Texts for training ----------------------------------------------------------------


def test_every_epoch_deals_every_text_once_to_neighbours_of_like_length(target, plan) -> None:
    pool = Pool()
    pen = Pen(target, plan, batch=30, seed=4)
    pool.add(pen.own([[]]))
    count, most = len(pool.ends), 160
    seen = []
    for tokens, starts, ends in Shelf(pool, seed=1).batches(most):
        assert tokens.numel() <= most or len(tokens) == 1
        assert tokens.shape[1] == int(ends.max())
        assert bool((starts < ends).all())
        seen += [tuple(line) for line in tokens.tolist()]
        if len(seen) >= count:
            break
    wanted = [line[: int(end)] for line, end in zip(pool.tokens.tolist(), pool.ends, strict=True)]
    assert sorted(tuple(t for t in line if t) for line in seen) == sorted(
        tuple(t for t in line if t) for line in wanted
    )


# --- All of it -------------------------------------------------------------------------


def test_it_writes_trains_and_leaves_what_can_be_served(tmp_path, folder, described, head) -> None:
    identity = HeadTarget(str(folder), described.weights, "LlamaForCausalLM", 320, 512)
    save_head(head, IDS, identity, tmp_path / "head", storage="int8", drafted=3, card={})
    prompts, bench = tmp_path / "prompts.jsonl", tmp_path / "bench.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(90)))
    bench.write_text(json.dumps({"turns": ["what is it", "and this"]}) + "\n")
    (tmp_path / "openings.txt").write_text("\nSay")
    given = ["--target", folder, "--head", tmp_path / "head", "--out", tmp_path / "out"]
    given += ["--prompts", prompts, "--openings", tmp_path / "openings.txt", "--exclude", bench]
    given += ["--device", "cpu", "--dtype", "float32", "--batch", 48, "--prompt-tokens", 12]
    given += ["--answer-tokens", 16, "--room", 64, "--writing-s", 0.5, "--training-s", 2]
    given += ["--tokens", 600, "--inner", 128, 160, "--most-bytes", 100_000]
    report = teach(parser().parse_args(list(map(str, given))))
    assert report["distributions"] > 100
    assert {point["inner"] for point in report["curve"]} == {128, 160}
    assert {"held", "drawn", "greedy"} <= report["curve"][-1].keys()
    assert report["steps"] > 0
    for inner in (128, 160):
        trained, ids = read_head(tmp_path / "out" / f"head-{inner}")
        assert trained.shape.intermediate == inner
        assert len(ids) == len(IDS)
    laws = cut_laws(np.load(tmp_path / "out" / "laws.npz"), 3000)
    size = sum(6 * len(law.keys) + 3 * len(law.ids) for law in laws)
    assert 2000 < size <= 3000
    assert all(list(law.keys) == sorted(law.keys) for law in laws)
    lessons = lessons_of(np.load(tmp_path / "out" / "lessons.npz"), 2)
    assert len(lessons) >= 2
    for lesson in lessons:
        assert len(lesson.law_ids) == len(lesson.tokens) - lesson.start
        assert lesson.law_logs[0] == sorted(lesson.law_logs[0], reverse=True)


def test_texts_of_an_earlier_run_are_learnt_too(tmp_path, target, plan) -> None:
    pool, later = Pool(), Pool()
    pool.add(Pen(target, plan, batch=9, seed=4).own([[], [60, 61]]))
    pool.add(Pen(target, plan, batch=3, seed=5).own([[70] * 9]))
    pool.save_texts(tmp_path / "texts.npz")
    later.add_texts(tmp_path / "texts.npz", torch.device("cpu"))
    longest = later.tokens.shape[1]
    assert longest == int(pool.ends.max())
    assert torch.equal(later.tokens, pool.tokens[:, :longest])
    for name in ("starts", "ends", "heats", "mass"):
        assert torch.equal(getattr(later, name), getattr(pool, name)), name
    later.add(Pen(target, plan, batch=3, seed=6).own([[80]]))
    assert len(later.ends) > len(pool.ends)
    assert later.distributions > 0


def test_a_head_narrower_than_it_begins_is_refused_before_anything_is_written(
    tmp_path, folder, described, head
) -> None:
    identity = HeadTarget(str(folder), described.weights, "LlamaForCausalLM", 320, 512)
    save_head(head, IDS, identity, tmp_path / "head", storage="int8", drafted=3, card={})
    given = ["--target", folder, "--head", tmp_path / "head", "--out", tmp_path / "out"]
    given += ["--openings", tmp_path / "openings.txt", "--device", "cpu", "--inner", 64]
    with pytest.raises(StartError, match="--inner: the head has 128 units, and gets no fewer"):
        teach(parser().parse_args(list(map(str, given))))
    assert not (tmp_path / "out").exists()
