"""What a student learns from: the divergence of its distribution from the target's.

The chance that a drafted token is accepted is sum(min(p, q)), one less the total
variation distance of the target's p and the draft's q (Leviathan et al., 2211.17192,
section 3.3). Total variation has almost no gradient where the distributions do not overlap
yet, so it is mixed with the Kullback-Leibler divergence, which has one (DistillSpec,
Zhou et al., 2310.08461, compares them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.native.student import Student
from services.training.distill.batches import Batch, Collator, epoch
from services.training.distill.texts import Text

_EVALUATION_POSITIONS = 2048

#: Weight of total variation in what is learnt; see `distance`.
VARIATION = 0.75


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over `positions`: of sum(min(p, q)), and of agreeing best tokens."""

    positions: int = 0
    overlap: float = 0.0
    agreed: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.positions + other.positions,
            self.overlap + other.overlap,
            self.agreed + other.agreed,
        )

    @property
    def acceptance(self) -> float:
        """Mean sum(min(p, q)): the chance that a token drawn from q is accepted."""
        return self.overlap / max(1, self.positions)

    @property
    def greedy(self) -> float:
        """Share of positions where both distributions have the same best token."""
        return self.agreed / max(1, self.positions)


def law_logits(student: Student, batch: Batch) -> Tensor:
    """The student's logits [R, m] at every distribution of the batch.

    The head sees only the rows asked for; what the model does after its head
    (scaling, soft caps) is done to them as well.
    """
    model = student.model
    head = model.get_output_embeddings()

    def gather(_: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].flatten(0, 1)[batch.rows][None], *inputs[1:])

    hook = head.register_forward_pre_hook(gather)
    try:
        # Padding is on the right, so that causal attention never sees it: no mask.
        logits: Tensor = model(input_ids=batch.token_ids, use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits.float()


def loss_of(logits: Tensor, batch: Batch, variation: float = VARIATION) -> Tensor:
    """Mean distance of q from p at the batch's distributions; see `distance`."""
    return distance(logits, batch.columns, batch.probabilities, variation).mean()


def distance(
    logits: Tensor, columns: Tensor | None, p: Tensor, variation: float = VARIATION
) -> Tensor:
    """How far q of `logits` [R, m] is from p [R, n] of the tokens `columns` [R, n], per row [R].

    `columns` None: p [R, m] is known of all of them.

    `variation`: weight of the chance of a rejection (twice, which is the L1 distance of
    whole distributions); the rest is KL(p || q), p renormalised over the columns of q.
    """
    logs = logits.log_softmax(-1)
    if columns is not None:
        logs = logs.gather(-1, columns)
    share = p / p.sum(-1, keepdim=True).clamp_min(1e-9)
    divergence = -(share * logs).sum(-1) - torch.special.entr(share).sum(-1)
    rejected = 1.0 - torch.minimum(p, logs.exp()).sum(-1)
    return torch.lerp(divergence, 2.0 * rejected, variation)


@torch.no_grad()
def score_of(logits: Tensor, batch: Batch) -> Score:
    """How well these logits [R, m] do at the batch's distributions."""
    q = logits.softmax(-1).gather(-1, batch.columns)
    overlap = torch.minimum(batch.probabilities, q).sum()
    agreed = (logits.argmax(-1) == batch.best).sum()
    return Score(batch.positions, float(overlap), float(agreed))


@torch.inference_mode()
def evaluate(student: Student, texts: Sequence[Text]) -> Score:
    """The student's score on texts."""
    learner = StudentLearner(student)
    score = Score()
    for group in epoch(texts, _EVALUATION_POSITIONS, seed=0):
        batch = learner.batch(group)
        score += score_of(law_logits(student, batch), batch)
    return score


class StudentLearner:
    """A student as the training has it."""

    def __init__(self, student: Student) -> None:
        config = student.model.config.get_text_config()
        self._student = student
        self._collate = Collator(student.head_ids, config.vocab_size)

    @property
    def own(self) -> Mapping[str, torch.nn.Parameter]:
        """All that it does not share with its base."""
        return self._student.own()

    @property
    def device(self) -> torch.device:
        """Where it is."""
        device: torch.device = self._student.model.device
        return device

    def batch(self, texts: Sequence[Text]) -> Batch:
        """The distributions of these texts, for this student's head."""
        return self._collate(texts).to(self.device)

    def learn(self, texts: Sequence[Text], seed: int) -> int:  # noqa: ARG002
        """Add the gradient of the mean divergence at these texts' distributions."""
        batch = self.batch(texts)
        torch.autograd.backward(loss_of(law_logits(self._student, batch), batch))
        return batch.positions

    def score(self, texts: Sequence[Text]) -> Score:
        """How well it does at the distributions of texts."""
        return evaluate(self._student, texts)
