"""The weights of the n-gram `mixture`, fitted to texts with the target's distributions.

At every place a softmax over the candidates predicts the target's own token from the sources'
scores. That is the likeliest token in greedy decoding, and in coupled sampling the one that
wins with the noise of that place. The likelihood is concave in the weights, so a few hundred
steps find the best ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product

import torch
from torch import Tensor

from services.contract.top_rows import WIDTH as LIKELIEST
from services.contract.top_rows import pack
from services.contract.types import DraftTree, OpenDraft, ResolvedSampling, VerifyMode
from services.drafter.methods.ngram.mixture import COUPLED, GREEDY, HEADED, INFORMED, Scorer
from services.drafter.methods.ngram.small_tree import SmallTrees, TargetRows
from services.drafter.methods.ngram.text_index import LONGEST_MATCH, TextIndex
from services.drafter.methods.ngram.weights import Weights
from services.engine.ngram_file import DraftLaw, Lesson, NgramFile

NAMES = tuple(field.name for field in fields(Weights))
_NOISE = NAMES.index("noise")
MOST_CANDIDATES = 40
STEPS = 300
REHEARSED = 60
"""About how many texts are decoded with drafts: verifications take most of the time here."""
SENT, DEPTH, WIDTH = 5, 8, 8
"""The usual nodes and levels of a tree that pacing sends, and candidates of a place."""
RIDGE = 2.0
"""Regularises weights towards 0, with the weight of so many places."""


Example = tuple[list[list[float]], int]
"""Rows of features, that of `other` first, and which of them is right."""


Verify = Callable[[Sequence[int], DraftTree], Sequence[Sequence[int]]]
"""What the target says is likeliest after a text, and after each node of a draft behind it."""
Rows = Sequence[bytes]
"""By place of a lesson: what the verdict tells that brought the token there as its last."""


def fit(
    lessons: Sequence[Lesson], file: NgramFile, verify: Verify, seed: int = 0
) -> dict[str, float]:
    """Weights for both ways of decoding, by their names in an n-gram file.

    Where lessons have distributions of a draft model, or of a head, places that it has computed
    get weights of their own, since it knows much of what the other sources know. The target's
    predictions at drafts (`verify`) are a source, too: at trees drafted with the weights without
    it.
    """
    found = _fitted(lessons, file, [()] * len(lessons), seed)
    trees = SmallTrees(replace(file, weights=found))
    chosen = lessons[:: max(1, len(lessons) // REHEARSED)]
    rows = [_rehearsed(lesson, trees, verify) for lesson in chosen]
    return _fitted(chosen, file, rows, seed)


def _rehearsed(lesson: Lesson, trees: SmallTrees, verify: Verify) -> Rows:
    """The rows of verdicts while a lesson's answer is decoded with small trees."""
    text, start = list(lesson.tokens), lesson.start
    sampling = ResolvedSampling(max_tokens=len(text))
    prompt = tuple(text[:start])
    opening = OpenDraft(prompt, VerifyMode.GREEDY, sampling, 0, num_candidates=WIDTH)
    session = trees.open(opening, "")
    told = [b""] * len(lesson.law_ids)
    place = 0
    while place < len(told):
        known = text[: start + place]
        while not session.follow(known):
            pass
        tree = session.draft(place, DEPTH).tree.first(SENT)
        place = min(place + 1 + _taken(tree, text[start + place :]), len(told))
        if len(tree):
            contexts = (known[-1], *tree.token_ids)
            told[place - 1] = pack(contexts, verify(known, tree))
    return told


def _taken(tree: DraftTree, text: Sequence[int]) -> int:
    """How many tokens of the text stand in the tree."""
    node, taken = -1, 0
    edges = list(zip(tree.every_parent, tree.token_ids, strict=True))
    for token in text:
        if (node, token) not in edges:
            break
        node, taken = edges.index((node, token)), taken + 1
    return taken


def _fitted(
    lessons: Sequence[Lesson], file: NgramFile, rows: Sequence[Rows], seed: int
) -> dict[str, float]:
    source = random.Random(seed)
    told = {id(lesson): own for lesson, own in zip(lessons, rows, strict=True)}
    found: dict[str, float] = {}
    informants = [name for name in _SAID if any(_SAID[name](lesson) for lesson in lessons)]
    greedy = [lesson for lesson in lessons if lesson.greedy]
    for informant, (prefix, noisy) in product(informants, ((GREEDY, False), (COUPLED, True))):
        chosen = lessons if noisy else greedy or lessons
        examples = [
            example
            for lesson in chosen
            if (drafts := _SAID[informant](lesson))
            for example in _examples(lesson, drafts, lessons, file, source, noisy, told)
        ]
        if examples:
            name = prefix + informant
            found |= {name + n: value for n, value in _solve(examples, noisy).items()}
    return found


_SAID: Mapping[str, Callable[[Lesson], Sequence[DraftLaw | None]]] = {
    "": lambda lesson: [None] * len(lesson.law_ids),
    INFORMED: lambda lesson: lesson.draft,
    HEADED: lambda lesson: lesson.head,
}
"""What a draft model, or a head, says of a lesson's places, by the name of the weights for that."""


def _examples(
    lesson: Lesson,
    drafts: Sequence[DraftLaw | None],
    lessons: Sequence[Lesson],
    file: NgramFile,
    source: random.Random,
    noisy: bool,
    told: Mapping[int, Rows],
) -> Iterator[Example]:
    own, units = TextIndex(), _units(file)
    own.extend(lesson.tokens[: lesson.start])
    pool = _pool(lesson, lessons, source)
    said, blocks = TargetRows(LIKELIEST, 0), told[id(lesson)] or [b""] * len(lesson.law_ids)
    places = zip(lesson.law_ids, lesson.law_logs, drafts, blocks, strict=True)
    for ids, logs, draft, block in places:
        rows, other = _features(units, own, pool, said.after(own.tokens[-1]), draft)
        said.learn(block)
        right = ids[0]
        if noisy:
            right = _race(rows, ids, logs, source)
        tokens = list(rows)[:MOST_CANDIDATES]
        place = tokens.index(right) + 1 if right in rows and right in tokens else 0
        yield [other, *(rows[token] for token in tokens)], place
        if len(own) < len(lesson.tokens):
            own.extend([lesson.tokens[len(own)]])


def _pool(
    lesson: Lesson, lessons: Sequence[Lesson], source: random.Random
) -> tuple[TextIndex, ...]:
    """A few other answers, as of one tenant; every other lesson has none."""
    if source.random() < 0.5:
        return ()
    index = TextIndex()
    for other in source.sample(list(lessons), min(8, len(lessons))):
        if other is not lesson:
            index.extend((0xFFFFFFFF, *other.tokens[other.start :]))
    return (index,)


def _units(file: NgramFile) -> list[Scorer]:
    """One scorer for each weight: what it scores with that alone is the weight's feature."""
    return [Scorer(replace(Weights(), **{name: 1.0}), file) for name in NAMES]


def _features(
    units: Sequence[Scorer],
    own: TextIndex,
    pool: Sequence[TextIndex],
    said: Sequence[int],
    draft: DraftLaw | None,
) -> tuple[dict[int, list[float]], list[float]]:
    context = own.tokens[-LONGEST_MATCH:]
    rows: dict[int, list[float]] = {}
    others = [0.0] * len(units)
    for column, unit in enumerate(units):
        scores, others[column], _ = unit.score(
            context, own, pool, filed=True, rows=said, draft=draft
        )
        for token, value in scores.items():
            rows.setdefault(token, [0.0] * len(units))[column] = value
    return rows, others


def _race(
    rows: dict[int, list[float]],
    ids: Sequence[int],
    logs: Sequence[float],
    source: random.Random,
) -> int:
    """Draw the noise of a place, note that of the candidates, and say who wins."""
    times = {token: source.expovariate(1.0) for token in {*rows, *ids}}
    for token, row in rows.items():
        row[_NOISE] = -math.log(times[token])
    rest = 1.0 - sum(map(math.exp, logs))
    finish = [(times[token] / math.exp(log), token) for token, log in zip(ids, logs, strict=True)]
    if rest > 1e-6:
        finish.append((source.expovariate(1.0) / rest, -1))
    return min(finish)[1]


def _solve(examples: Sequence[Example], noisy: bool) -> dict[str, float]:
    """The weights of the greatest likelihood."""
    most = max(len(rows) for rows, _ in examples)
    features = torch.zeros(len(examples), most, len(NAMES))
    there = torch.zeros(len(examples), most, dtype=torch.bool)
    for place, (rows, _) in enumerate(examples):
        features[place, : len(rows)] = torch.tensor(rows)
        there[place, : len(rows)] = True
    right = torch.tensor([place for _, place in examples])
    weights = torch.zeros(len(NAMES), requires_grad=True)
    ridge = RIDGE / len(examples)
    optimiser = torch.optim.LBFGS(
        [weights], max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        scores = (features @ weights).masked_fill(~there, -math.inf)
        loss = torch.nn.functional.cross_entropy(scores, right) + ridge * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    values = weights.detach().tolist()
    if not noisy:
        values[_NOISE] = 0.0
    return {name: round(value, 4) for name, value in zip(NAMES, values, strict=True)}
