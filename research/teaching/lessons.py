"""A head's training on whole texts side by side; `services.training.eagle.learner`, padded.

Every row of a text is drafted, those of the prompt, too, so that the steps of an answer's first
tokens have rows before them. A row learns where its distribution is one of the answer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from research.teaching.target import Target
from services.training.distill.learning import VARIATION, Score, distance
from services.training.eagle.head import EagleHead
from services.training.eagle.learner import Rope


@dataclass(frozen=True, slots=True)
class Lesson:
    """Some texts as the target read them.

    states [B, N, layers x width] and `embedded` [B, N, width] of N = T - 1 rows: row i has the
    states of token i and the embedding of token i + 1. `texts`, `rows` [R]: which rows learn;
    `shares` float32 [R, m], what the target gives to the head's tokens there; `best` [R], the
    head's column of the target's likeliest token, -1 without.
    """

    states: Tensor
    embedded: Tensor
    texts: Tensor
    rows: Tensor
    shares: Tensor
    best: Tensor


@torch.no_grad()
def lesson_of(
    target: Target,
    layers: Sequence[int],
    head_ids: Tensor,
    tokens: Tensor,
    starts: Tensor,
    ends: Tensor,
) -> Lesson:
    """The lesson of texts [B, T] whose answers begin at `starts` and end before `ends` [B]."""
    states, last = target.read(tokens, layers)
    places = torch.arange(tokens.shape[1], device=tokens.device)
    # The distribution after p tokens is that of place p - 1; row p - 2 learns it.
    learnt = (places >= starts[:, None] - 1) & (places < ends[:, None] - 1) & (places >= 1)
    texts, at = learnt.nonzero(as_tuple=True)
    logits = (last[texts, at] @ target.outputs.T).float()
    columns = torch.full((target.vocab_size,), -1, device=tokens.device)
    columns[head_ids] = torch.arange(len(head_ids), device=tokens.device)
    best = columns[logits.argmax(-1)]
    shares = (logits[:, head_ids] - logits.logsumexp(-1, keepdim=True)).exp_()
    embedded = F.embedding(tokens[:, 1:], target.embeddings)
    return Lesson(states[:, :-1], embedded, texts, at - 1, shares, best)


class Drafting:
    """The steps of a head over a lesson."""

    def __init__(self, head: EagleHead, lesson: Lesson) -> None:
        """The true rows: their features, keys and values."""
        shape, attention = head.shape, head.layer.self_attn
        self._head, self._lesson = head, lesson
        count = lesson.states.shape[1]
        places = torch.arange(count, device=lesson.states.device)
        self._rope = Rope(places, shape.head_dim, shape.theta)
        self._features = head.fc(lesson.states)
        self._rows = head.layer.rows(lesson.embedded, self._features)
        self._keys = self._turned(attention.k_proj(self._rows))
        self._values = self._split(attention.v_proj(self._rows))
        self._behind = places[:, None] - places

    def steps(self, count: int) -> Iterator[Tensor]:
        """The head's own features [B, N, width] after each step."""
        attention = self._head.layer.self_attn
        features, rows = self._features, self._rows
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(count):
            if step:
                # The first rows of a text have no row before them, and nobody looks at them.
                features = features.roll(1, 1)
                rows = self._head.layer.rows(self._lesson.embedded, features)
                # Each is seen by rows of later steps as far behind as there were steps since.
                own = [(keys.roll(1, 2), values.roll(1, 2)) for keys, values in own]
                own.append(
                    (self._turned(attention.k_proj(rows)), self._split(attention.v_proj(rows)))
                )
            features = self._head.layer.after(features, self._attend(rows, own))
            yield features

    def _split(self, rows: Tensor) -> Tensor:
        """[B, heads, N, head_dim]."""
        dim = self._head.shape.head_dim
        return rows.view(*rows.shape[:2], -1, dim).transpose(1, 2)

    def _turned(self, rows: Tensor) -> Tensor:
        dim = self._head.shape.head_dim
        parts = rows.view(*rows.shape[:2], -1, dim)
        turned: Tensor = self._rope(parts).transpose(1, 2)
        return turned

    def _attend(self, rows: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        queries = self._turned(self._head.layer.self_attn.q_proj(rows))
        keys, values = self._keys.to(queries.dtype), self._values.to(queries.dtype)
        if not own:
            mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            return _side_by_side(mixed)
        scale = queries.shape[-1] ** -0.5
        scores = (queries @ keys.transpose(-1, -2)).float()
        scores = scores.masked_fill(self._behind < len(own), -torch.inf)
        # No true row is that far behind the first ones, and nobody looks at them.
        scores[..., : len(own), :].fill_(0.0)
        mine = torch.stack([(queries * key).sum(-1) for key, _ in own], -1).float()
        shares = (torch.cat((scores, mine), -1) * scale).softmax(-1).to(values.dtype)
        mixed = shares[..., : -len(own)] @ values
        for place, (_, value) in enumerate(own):
            mixed = mixed + shares[..., place - len(own), None] * value
        return _side_by_side(mixed)


def _side_by_side(heads: Tensor) -> Tensor:
    """[B, heads, N, head_dim] to [B, N, heads x head_dim]."""
    return heads.transpose(1, 2).flatten(2)


def loss_of(
    head: EagleHead, lesson: Lesson, weights: Sequence[float], variation: float = VARIATION
) -> Tensor:
    """The steps' weighted mean distance; see `services.training.distill.learning.distance`."""
    losses = []
    drafting = Drafting(head, lesson)
    for weight, features in zip(weights, drafting.steps(len(weights)), strict=True):
        logits = head.logits(features[lesson.texts, lesson.rows])
        losses.append(weight * distance(logits, None, lesson.shares, variation).mean())
    return torch.stack(losses).sum() / sum(weights)


@torch.no_grad()
def scores_of(head: EagleHead, lesson: Lesson, steps: int) -> list[Score]:
    """How well drafts do whose tokens before were right, for each step."""
    scores = []
    for features in Drafting(head, lesson).steps(steps):
        logits = head.logits(features[lesson.texts, lesson.rows])
        overlap = torch.minimum(lesson.shares, logits.softmax(-1)).sum()
        agreed = (logits.argmax(-1) == lesson.best).sum()
        scores.append(Score(len(lesson.rows), float(overlap), float(agreed)))
    return scores


@torch.no_grad()
def widened(head: EagleHead, known: Tensor, ids: Tensor, outputs: Tensor, inner: int) -> EagleHead:
    """The same head for the tokens `ids`, with `inner` units in its MLP; it drafts the same.

    `known`: the tokens that it has, ascending. Its row of a new token is what a linear map makes of
    the target's row in `outputs` [V, width], fitted to the tokens that it has; new units have
    random inputs, and add nothing yet.
    """
    shape = replace(head.shape, tokens=len(ids), intermediate=inner)
    wide = EagleHead(shape).to(head.fc.weight.device)
    generator = torch.Generator().manual_seed(inner)
    for name, parameter in wide.named_parameters():
        old = head.get_parameter(name)
        if name == "lm_head.weight":
            place = torch.searchsorted(known, ids).clamp_max(len(known) - 1)
            there = known[place] == ids
            mapped = outputs[ids] @ torch.linalg.lstsq(outputs[known], old).solution
            parameter.copy_(torch.where(there[:, None], old[place], mapped))
        elif old.shape == parameter.shape:
            parameter.copy_(old)
        elif name.endswith("down_proj.weight"):
            parameter.zero_()
            parameter[:, : old.shape[1]] = old
        else:
            spread = torch.randn(parameter.shape, generator=generator) * float(old.std())
            parameter.copy_(spread)
            parameter[: old.shape[0]] = old
    return wide
