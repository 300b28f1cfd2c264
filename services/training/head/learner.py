"""A head learns several draft steps at once: EAGLE-3's training-time test.

Texts lie side by side. Row i of a text has the states of token i and the embedding of token i + 1;
it learns the distribution known after the first i + 2 tokens. At step 1 every row has a true
feature. At step k a row has the head's own feature that step k - 1 made of the row before it, and
it attends to what drafting has there: true rows up to k - 1 positions back, then the own rows of
the steps since, and itself. Tokens are those of the text. What is minimised is `distance`, at each
step, with weights that fall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from services.training.head.head import EagleHead
from services.training.learning import Score, distance, score_of
from services.training.texts import Text
from services.training.trainer import epoch

_EVALUATION_POSITIONS = 1024

#: States [count, width] of the first tokens of the text with this number.
States = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Some texts, padded on the right to N rows.

    `states` [B, N, layers x width], `next_ids` int64 [B, N]: of all rows. For each distribution:
    `texts` and `rows` int64 [R], which row learns it; `columns` int64 and `probabilities` float32
    [R, n], a token that the head lacks with 0; `best` int64 [R]: the column of the likeliest
    token, -1 without.
    """

    states: Tensor
    next_ids: Tensor
    texts: Tensor
    rows: Tensor
    columns: Tensor
    probabilities: Tensor
    best: Tensor

    def to(self, device: torch.device) -> Lesson:
        """A copy on a device."""
        return Lesson(*(getattr(self, field.name).to(device) for field in fields(self)))


def columns_of(head_ids: Tensor, vocab_size: int) -> Tensor:
    """The head's row of each token of the vocabulary, -1 for one that it lacks."""
    columns = torch.full((vocab_size,), -1, dtype=torch.int64)
    columns[head_ids] = torch.arange(len(head_ids))
    return columns


def lesson_of(texts: Sequence[Text], states: States, columns: Tensor) -> Lesson | None:
    """The rows of these texts; None where none of them has anything to learn."""
    texts = [text for text in texts if text.prefixes[-1] >= 2]
    if not texts:
        return None
    sizes = [int(text.prefixes[-1]) - 1 for text in texts]
    # A row needs a token before the last.
    known = [text.prefixes >= 2 for text in texts]
    each = list(zip(texts, known, strict=True))
    ids = np.concatenate([text.law_ids[law] for text, law in each]).astype(np.int64)
    logs = np.concatenate([text.law_logs[law] for text, law in each])
    rows = np.concatenate([text.prefixes[law] - 2 for text, law in each]).astype(np.int64)
    found = columns[torch.from_numpy(ids)]
    counts = torch.tensor([int(law.sum()) for law in known])
    tokens = [torch.from_numpy(text.token_ids.astype(np.int64)) for text in texts]
    return Lesson(
        pad_sequence([states(t.number, n) for t, n in zip(texts, sizes, strict=True)], True),
        pad_sequence([ids[1 : n + 1] for ids, n in zip(tokens, sizes, strict=True)], True),
        torch.arange(len(texts)).repeat_interleave(counts),
        torch.from_numpy(rows),
        found.clamp_min(0),
        torch.from_numpy(logs).float().exp() * (found >= 0),
        found[:, 0],
    )


class Rope:
    """Rotary position embedding as Llama has it, for positions [N]."""

    def __init__(self, positions: Tensor, head_dim: int, theta: float) -> None:
        powers = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
        angles = positions.float()[:, None] / theta**powers
        self._cos = torch.cat((angles, angles), -1).cos()[:, None]
        self._sin = torch.cat((angles, angles), -1).sin()[:, None]

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [..., N, heads, head_dim], turned."""
        one, other = rows.float().chunk(2, -1)
        turned = rows.float() * self._cos + torch.cat((-other, one), -1) * self._sin
        return turned.to(rows.dtype)


class Drafting:
    """The steps of a head over one lesson."""

    def __init__(self, head: EagleHead, embeddings: Tensor, lesson: Lesson) -> None:
        """The true rows: their features, keys and values."""
        self._head, self._attention = head, head.layer.self_attn
        places = torch.arange(lesson.states.shape[1], device=lesson.states.device)
        self._behind = places[:, None] - places
        self._rope = Rope(places, head.shape.head_dim, head.shape.theta)
        self._features = head.fc(lesson.states.to(head.fc.weight.dtype))
        self._embedded = F.embedding(lesson.next_ids, embeddings)
        self._rows = head.layer.rows(self._embedded, self._features)
        self._true = self._keys_and_values(self._rows)

    def steps(self, count: int) -> Iterator[Tensor]:
        """The head's own features [B, N, width] after each step."""
        features, rows = self._features, self._rows
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(count):
            if step:
                # The first rows of a text have no row before them, and nobody looks at them.
                features = features.roll(1, 1)
                rows = self._head.layer.rows(self._embedded, features)
                # Each is seen by rows of later steps as far behind as there were steps since.
                own = [(keys.roll(1, 2), values.roll(1, 2)) for keys, values in own]
                own.append(self._keys_and_values(rows))
            features = self._head.layer.after(features, self._attend(rows, own))
            yield features

    def _split(self, rows: Tensor) -> Tensor:
        """[B, N, heads, head_dim]."""
        return rows.view(*rows.shape[:2], -1, self._head.shape.head_dim)

    def _keys_and_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Both [B, heads, N, head_dim], of as many heads as queries have."""
        repeat = self._head.shape.heads // self._head.shape.kv_heads
        keys = self._rope(self._split(self._attention.k_proj(rows)))
        values = self._split(self._attention.v_proj(rows))
        return tuple(part.repeat_interleave(repeat, 2).transpose(1, 2) for part in (keys, values))  # type: ignore[return-value]

    def _attend(self, rows: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """What rows attend to, [B, N, heads x head_dim]."""
        queries = self._rope(self._split(self._attention.q_proj(rows))).transpose(1, 2)
        keys, values = self._true
        scores = (queries @ keys.to(queries.dtype).transpose(-1, -2)).float()
        scores = scores.masked_fill(self._behind < len(own), -torch.inf)
        # No true row is that far behind the first ones, and nobody looks at them.
        scores[..., : len(own), :] = 0.0
        mine = [(queries * key).sum(-1, keepdim=True).float() for key, _ in own]
        shares = torch.cat((scores, *mine), -1) * queries.shape[-1] ** -0.5
        shares = shares.softmax(-1).to(values.dtype)
        mixed = shares[..., : scores.shape[-1]] @ values
        for place, (_, value) in enumerate(own, scores.shape[-1]):
            mixed = mixed + shares[..., place, None] * value
        side_by_side: Tensor = mixed.transpose(1, 2).flatten(2)
        return side_by_side


class EagleLearner:
    """A head as the trainer has it.

    `embeddings` [V, width]: the target's, frozen. `weights`: of each step. `fast`: products in
    bfloat16.
    """

    def __init__(
        self,
        head: EagleHead,
        head_ids: Tensor,
        embeddings: Tensor,
        states: States,
        weights: Sequence[float],
        *,
        fast: bool = False,
    ) -> None:
        self.head = head
        self._head_ids, self._embeddings = head_ids, embeddings
        self._states, self._weights, self._fast = states, weights, fast
        self._columns = columns_of(head_ids.cpu(), len(embeddings))

    @property
    def own(self) -> Mapping[str, nn.Parameter]:
        """All of the head's parameters."""
        return {name: p for name, p in self.head.named_parameters() if p.requires_grad}

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.head.fc.weight.device

    def exactly(self, head: EagleHead) -> EagleLearner:
        """The same for another head, in float32."""
        return EagleLearner(head, self._head_ids, self._embeddings, self._states, self._weights)

    def learn(self, texts: Sequence[Text], seed: int) -> int:  # noqa: ARG002
        """Add the gradient of the steps' weighted mean distances; returns step 1's positions."""
        lesson = self._lesson(texts)
        if lesson is None:
            return 0
        losses = [
            weight * distance(logits, columns, p).sum() / max(1, len(logits))
            for weight, (logits, columns, p, _) in zip(
                self._weights, self._said(lesson), strict=True
            )
        ]
        torch.autograd.backward(torch.stack(losses).sum() / sum(self._weights))
        return len(lesson.rows)

    @torch.no_grad()
    def scores(self, texts: Sequence[Text]) -> list[Score]:
        """Per step, how well drafts do whose tokens before were right."""
        totals = [Score()] * len(self._weights)
        for group in epoch(texts, _EVALUATION_POSITIONS, seed=0):
            if (lesson := self._lesson(group)) is not None:
                for step, said in enumerate(self._said(lesson)):
                    totals[step] += score_of(*said)
        return totals

    def _said(self, lesson: Lesson) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Per step the logits of the rows that have so many before them, and what is right."""
        with self._cast():
            drafting = Drafting(self.head, self._embeddings, lesson)
            for step, features in enumerate(drafting.steps(len(self._weights))):
                there = lesson.rows >= step
                known = (lesson.columns, lesson.probabilities, lesson.best)
                logits = self.head.logits(features[lesson.texts[there], lesson.rows[there]])
                yield (logits, *(part[there] for part in known))  # type: ignore[misc]

    def _lesson(self, texts: Sequence[Text]) -> Lesson | None:
        lesson = lesson_of(texts, self._states, self._columns)
        return None if lesson is None else lesson.to(self.device)

    def _cast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._fast)
