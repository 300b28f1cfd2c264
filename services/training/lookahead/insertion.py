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
    """A packed row of one piece, as the ragged attention asks for it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._masks: dict[int | None, Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """Shapes as of `ragged_attention`."""
        _, heads, count, width = query.shape
        kv_heads, groups = key.shape[1], heads // key.shape[1]
        keys, values = (whole[0] for whole in self._keep(layer, key, value))
        window = scoring.window
        if window not in self._masks:
            self._masks[window] = additive(self._visible(window), query).repeat(groups, 1)[None]
        mask = self._masks[window]
        packed = query.reshape(kv_heads, groups * count, width)
        attended = attend(packed, keys, values, mask, scoring)
        return attended.view(1, heads, count, -1).transpose(1, 2)

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, [1, kv_heads, keys, d], with those of these rows."""
        raise NotImplementedError

    def _visible(self, window: int | None) -> Tensor:
        """What these rows see, bool [n, keys]."""
        raise NotImplementedError


class _TextPass(_Pass):
    """The text itself; keeps its K and V, [1, kv_heads, T, d] of each layer."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.memory: dict[int, tuple[Tensor, Tensor]] = {}

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.memory[layer] = key, value
        return key, value

    def _visible(self, window: int | None) -> Tensor:
        rows = torch.arange(self.count)
        return _within(rows[:, None] >= rows, rows, rows, window)


class _InsertedPass(_Pass):
    """`steps` rows at each of `places`, behind a text that went before."""

    def __init__(self, text: _TextPass, places: Tensor, steps: int) -> None:
        self.positions = (places[:, None] + torch.arange(steps)).flatten()
        super().__init__(len(self.positions))
        self._text, self._place = text, places.repeat_interleave(steps)

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self._text.memory[layer]
        return torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)

    def _visible(self, window: int | None) -> Tensor:
        text = torch.arange(self._text.count)
        before = text < self._place[:, None]
        own = self._place == self._place[:, None]
        own &= self.positions <= self.positions[:, None]
        keys = torch.cat((text, self.positions))
        return _within(torch.cat((before, own), dim=1), self.positions, keys, window)


def _within(visible: Tensor, rows: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """`visible` [n, m] cut to a sliding window; positions of rows [n] and keys [m]."""
    return visible if window is None else visible & (keys > rows[:, None] - window)


def look_ahead(model: Any, embeddings: Tensor, token_ids: Sequence[int], places: Tensor) -> Tensor:
    """Logits [places * L, V] of the rows `embeddings` [L, width] inserted at `places` of a text.

    A place is how many tokens of the text come before it, at least one. Row j of a
    place, from 0, answers for token place + j + 1. The model runs the ragged attention;
    gradients reach `embeddings` alone.
    """
    text = _TextPass(len(token_ids))
    with torch.no_grad():
        ids = torch.tensor([list(token_ids)], device=model.device)
        _run(model, text, torch.arange(len(token_ids)), input_ids=ids, logits_to_keep=1)
    rows = _InsertedPass(text, places, len(embeddings))
    inserted = embeddings.repeat(len(places), 1)[None].to(model.device)
    return _run(model, rows, rows.positions, inputs_embeds=inserted)


def _run(model: Any, layout: _Pass, positions: Tensor, **inputs: Any) -> Tensor:
    output = model(
        position_ids=positions[None].to(model.device),
        use_cache=False,
        paceline_layout=layout,
        **inputs,
    )
    logits: Tensor = output.logits[0]
    return logits.float()
