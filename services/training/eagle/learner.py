"""A head learns several draft steps at once: EAGLE-3's training-time test.

At step 1 every row has a true feature. At step k the row of a position has the head's own
feature that step k - 1 made of the row before it, and it attends to what drafting has there:
true rows up to k - 1 positions back, then the own rows of the steps since, and itself. Tokens are
those of the text. What is minimised is `distance`, at each step, with weights that fall.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.training.distill.batches import epoch
from services.training.distill.learning import Score, distance
from services.training.distill.texts import Text
from services.training.eagle.head import EagleHead
from services.training.eagle.lessons import Lesson, Piece, States, columns_of, lesson_of

_EVALUATION_POSITIONS = 1024


class Rope:
    """Rotary position embedding as Llama has it, for one lesson's positions [N]."""

    def __init__(self, positions: Tensor, head_dim: int, theta: float) -> None:
        powers = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
        angles = positions.float()[:, None] / theta**powers
        self._cos = torch.cat((angles, angles), -1).cos()[:, None]
        self._sin = torch.cat((angles, angles), -1).sin()[:, None]

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [N, heads, head_dim], turned."""
        one, other = rows.float().chunk(2, -1)
        turned = rows.float() * self._cos + torch.cat((-other, one), -1) * self._sin
        return turned.to(rows.dtype)


class Drafting:
    """The steps of a head over one lesson."""

    def __init__(self, head: EagleHead, embeddings: Tensor, lesson: Lesson) -> None:
        """The true rows: their features, keys and values."""
        shape, attention = head.shape, head.layer.self_attn
        self._head, self._lesson = head, lesson
        rope = Rope(lesson.positions, shape.head_dim, shape.theta)
        features = head.fc(lesson.states.to(head.fc.weight.dtype))
        embedded = F.embedding(lesson.next_ids, embeddings)
        rows = head.layer.rows(embedded, features)
        self._keys = rope(self._split(attention.k_proj(rows)))
        self._values = self._split(attention.v_proj(rows))
        self._rope = Rope(lesson.positions[lesson.drafted], shape.head_dim, shape.theta)
        self._features, self._rows = features[lesson.drafted], rows[lesson.drafted]
        self._embedded = embedded[lesson.drafted]

    def steps(self, count: int) -> Iterator[Tensor]:
        """The head's own features [N, width] after each step."""
        features, rows = self._features, self._rows
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(count):
            if step:
                # The first rows of a text have no row before them, and nobody looks at them.
                features = features.roll(1, 0)
                rows = self._head.layer.rows(self._embedded, features)
                own.append(self._own(rows))
            features = self._head.layer.after(features, self._attend(rows, own))
            yield features

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), -1, self._head.shape.head_dim)

    def _own(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        attention = self._head.layer.self_attn
        keys = self._rope(self._split(attention.k_proj(rows)))
        return keys, self._split(attention.v_proj(rows))

    def _attend(self, rows: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        queries = self._rope(self._split(self._head.layer.self_attn.q_proj(rows)))
        out: list[Tensor] = []
        begin = 0
        for piece in self._lesson.pieces:
            mine = slice(begin, begin + piece.drafted)
            true = slice(piece.begin, piece.end)
            keys = torch.cat((self._keys[true], *(keys[mine] for keys, _ in own)))
            values = torch.cat((self._values[true], *(values[mine] for _, values in own)))
            out.append(self._attended(queries[mine], keys, values, seen(piece, len(own))))
            begin += piece.drafted
        return torch.cat(out)

    def _attended(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """[n, heads x head_dim] of one text."""
        repeat = self._head.shape.heads // self._head.shape.kv_heads
        keys, values = (
            part.repeat_interleave(repeat, 1).transpose(0, 1)[None] for part in (keys, values)
        )
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys, values, attn_mask=mask.to(keys.device)
        )
        return mixed[0].transpose(0, 1).flatten(1)


def seen(piece: Piece, own: int) -> Tensor:
    """What drafted rows attend to after `own` steps of their own: bool [n, rows + own x n].

    True rows of the text up to `own` positions back, of each own step the row that led here.
    """
    rows = torch.arange(piece.drafted)[:, None]
    true = torch.arange(piece.end - piece.begin) <= rows + piece.first - own
    offsets = torch.arange(piece.drafted)
    return torch.cat((true, *(offsets == rows - (own - step) for step in range(1, own + 1))), -1)


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
        with self._cast():
            drafting = Drafting(self.head, self._embeddings, lesson)
            losses = [
                weight * self._loss(features, lesson, step)
                for step, (weight, features) in enumerate(
                    zip(self._weights, drafting.steps(len(self._weights)), strict=True)
                )
            ]
        torch.autograd.backward(torch.stack(losses).sum() / sum(self._weights))
        return len(lesson.rows)

    def _loss(self, features: Tensor, lesson: Lesson, step: int) -> Tensor:
        there = lesson.offsets >= step
        logits = self.head.logits(features[lesson.rows[there]])
        lost = distance(logits, lesson.columns[there], lesson.probabilities[there])
        return lost.sum() / max(1, int(there.sum()))

    def score(self, texts: Sequence[Text]) -> Score:
        """Over all steps together; see `scores`."""
        return sum(self.scores(texts), Score())

    @torch.no_grad()
    def scores(self, texts: Sequence[Text]) -> list[Score]:
        """Per step, how well drafts do whose tokens before were right."""
        totals = [Score()] * len(self._weights)
        for group in epoch(texts, _EVALUATION_POSITIONS, seed=0):
            lesson = self._lesson(group)
            if lesson is None:
                continue
            with self._cast():
                drafting = Drafting(self.head, self._embeddings, lesson)
                for step, features in enumerate(drafting.steps(len(totals))):
                    totals[step] += self._score(features, lesson, step)
        return totals

    def _score(self, features: Tensor, lesson: Lesson, step: int) -> Score:
        there = lesson.offsets >= step
        logits = self.head.logits(features[lesson.rows[there]])
        q = logits.softmax(-1).gather(-1, lesson.columns[there])
        overlap = torch.minimum(lesson.probabilities[there], q).sum()
        agreed = (logits.argmax(-1) == lesson.best[there]).sum()
        return Score(int(there.sum()), float(overlap), float(agreed))

    def _lesson(self, texts: Sequence[Text]) -> Lesson | None:
        lesson = lesson_of(texts, self._states, self._columns)
        return None if lesson is None else lesson.to(self.device)

    def _cast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._fast)
