"""Look-ahead rows at many places of a text, in two passes of a frozen model.

Rows inserted into a text are seen by no token of it and by no row of another place.
So the text goes through the model once, without gradients, and leaves its K/V; then
all inserted rows of all its places go through together, each place attending to the
text before it and to its own rows. Of the backward pass only those rows take part.

Both passes use the attention that serves (`services.engine.native.attention`), with
layouts of their own in place of a session's caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.engine.native.attending import Scoring, additive, attend


class _Pass:
    """A packed row of one piece, as the ragged attention asks for it: rows at `positions` [n].

    `visible`: what they see, bool [n, keys], of the rows of the pass `before`, if there is one,
    and of their own. `memory`: their K and V, [1, kv_heads, n, d] of each layer.
    """

    def __init__(self, positions: Tensor, visible: Tensor, before: _Pass | None = None) -> None:
        self.count, self.positions = len(positions), positions
        self.memory: dict[int, tuple[Tensor, Tensor]] = {}
        self._visible, self._before = visible, before
        self._masks: dict[int | None, Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """Shapes as of `ragged_attention`."""
        _, heads, count, width = query.shape
        kv_heads, groups = key.shape[1], heads // key.shape[1]
        self.memory[layer] = key, value
        if self._before is not None:
            pairs = zip(self._before.memory[layer], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=2) for pair in pairs)
        window = scoring.window
        if window not in self._masks:
            self._masks[window] = additive(self._within(window), query).repeat(groups, 1)[None]
        packed = query.reshape(kv_heads, groups * count, width)
        attended = attend(packed, key[0], value[0], self._masks[window], scoring)
        return attended.view(1, heads, count, -1).transpose(1, 2)

    def _within(self, window: int | None) -> Tensor:
        """`visible`, cut to a sliding window."""
        if window is None:
            return self._visible
        before = () if self._before is None else (self._before.positions,)
        keys = torch.cat((*before, self.positions))
        return self._visible & (keys > self.positions[:, None] - window)


def look_ahead(model: Any, embeddings: Tensor, token_ids: Sequence[int], places: Tensor) -> Tensor:
    """Logits [places * L, V] of the rows `embeddings` [L, width] inserted at `places` of a text.

    A place is how many tokens of the text come before it, at least one. Row j of a
    place, from 0, answers for token place + j + 1. The model runs the ragged attention;
    gradients reach `embeddings` alone.
    """
    tokens, steps = torch.arange(len(token_ids)), torch.arange(len(embeddings))
    text = _Pass(tokens, tokens[:, None] >= tokens)
    with torch.no_grad():
        ids = torch.tensor([list(token_ids)], device=model.device)
        _run(model, text, input_ids=ids, logits_to_keep=1)
    positions, place = (places[:, None] + steps).flatten(), places.repeat_interleave(len(steps))
    own = (place == place[:, None]) & (positions <= positions[:, None])
    rows = _Pass(positions, torch.cat((tokens < place[:, None], own), dim=1), text)
    inserted = embeddings.repeat(len(places), 1)[None].to(model.device)
    return _run(model, rows, inputs_embeds=inserted)


def _run(model: Any, layout: _Pass, **inputs: Any) -> Tensor:
    output = model(
        position_ids=layout.positions[None].to(model.device),
        use_cache=False,
        paceline_layout=layout,
        **inputs,
    )
    logits: Tensor = output.logits[0]
    return logits.float()
