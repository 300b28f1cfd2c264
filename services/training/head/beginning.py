"""What a head begins as: the best linear forecast of its target's next state.

Two least-squares fits over some texts of the target, h being what its last layer puts out:

    fc         h of position i, from the states of position i
    attention  h of position i + 1 less that feature, from the row of the feature and the
               embedding of token i + 1; each row begins by attending to itself

Features are then of the kind that the head puts out, so that own features serve as well as true
ones, and the target's norm and output rows turn them into its distribution. The MLP adds nothing
yet. For the demo model the first step begins with an acceptance of 0.32; copies of the target's
last layer begin with 0.04, and take 40 000 positions to 0.23.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.native import NativeEngine
from services.training.head.head import EagleHead
from services.training.head.states import states_of
from services.training.texts import Text

#: The first tokens of a text have states unlike all others.
_SKIPPED = 8
#: Shares of the mean square that are added to the diagonals of the fits.
_FEATURE_RIDGE, _STEP_RIDGE = 1e-3, 1e-2
#: Logit of a row for itself; that for another token is about 0.
_MATCHING = 14.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows to fit: states [N, layers x width], embeddings [N, width] of the next tokens.

    `now` and `then` [N, width]: what the last layer puts out there, and one position on.
    """

    states: Tensor
    embeddings: Tensor
    now: Tensor
    then: Tensor


def sample(
    engine: NativeEngine, texts: Iterable[Text], layers: Sequence[int], embeddings: Tensor
) -> Sample:
    """The rows of these texts, by the target itself."""
    last = engine.num_layers
    watched = sorted({*layers, last})
    engine.watch(watched)
    parts: list[tuple[Tensor, ...]] = []
    for text, states in states_of(engine, texts):
        by_layer = dict(zip(watched, states.float().chunk(len(watched), 1), strict=True))
        seen = torch.cat([by_layer[layer] for layer in layers], 1)
        ids = torch.from_numpy(text.token_ids).long()
        first = min(_SKIPPED, len(ids) // 2)
        row, following = slice(first, -1), slice(first + 1, None)
        last_states = by_layer[last]
        following_ids = ids[following].to(embeddings.device)
        parts.append(
            (
                seen[row],
                embeddings[following_ids].float().cpu(),
                last_states[row],
                last_states[following],
            )
        )
    return Sample(*(torch.cat(part) for part in zip(*parts, strict=True)))


@torch.no_grad()
def begin(head: EagleHead, rows: Sample, seed: int) -> None:
    """Set the parameters of a head to the fits."""
    scale = rows.states.square().mean(0).sqrt().clamp_min(1e-6)
    fitted = _fit(rows.states / scale, rows.now, _FEATURE_RIDGE)
    head.fc.weight.copy_((fitted / scale[:, None]).T)
    features = rows.states @ head.fc.weight.T
    layer = head.layer
    layer.input_layernorm.weight.fill_(1.0)
    layer.hidden_norm.weight.fill_(1.0)
    step = _fit(layer.rows(rows.embeddings, features), rows.then - features, _STEP_RIDGE)
    _attend_to_itself(head, step.T, seed)
    layer.mlp.down_proj.weight.zero_()


def _fit(given: Tensor, wanted: Tensor, ridge: float) -> Tensor:
    """[columns, outputs] of least squares, with a penalty for size."""
    squares = given.T @ given
    squares.diagonal().add_(ridge * squares.diagonal().mean())
    fitted: Tensor = torch.linalg.solve(squares, given.T @ wanted)
    return fitted


def _attend_to_itself(head: EagleHead, step: Tensor, seed: int) -> None:
    """Attention that maps each row by `step` [width, 2 x width], as far as its rank allows.

    Queries and keys are the same random projection of the embedding.
    """
    shape, attention = head.shape, head.layer.self_attn
    left, sizes, right = torch.linalg.svd(step, full_matrices=False)
    rank = min(shape.kv_heads * shape.head_dim, shape.width)
    roots = sizes[:rank].sqrt()
    attention.v_proj.weight.zero_()
    attention.o_proj.weight.zero_()
    attention.v_proj.weight[:rank] = roots[:, None] * right[:rank]
    attention.o_proj.weight[:, :rank] = left[:, :rank] * roots
    generator = torch.Generator().manual_seed(seed)
    matching = torch.randn(len(attention.k_proj.weight), shape.width, generator=generator)
    # A row of spread 1 then gives itself the logit _MATCHING.
    spread = (_MATCHING / (shape.head_dim**0.5 * shape.width)) ** 0.5
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight.zero_()
        projection.weight[:, : shape.width] = spread * matching
