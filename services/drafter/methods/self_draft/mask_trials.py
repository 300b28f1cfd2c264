"""The mask search on a drafter's own engine and its sessions' own texts.

A candidate is scored as the skipping drafter would read the text: the prompt's K/V by
the whole model, copied from the session, all output up to the window's end by the
candidate, in one forward of at most `WINDOWS` x `WINDOW` tokens. The first output token
is the whole model's and in no window. SWIFT's window is the beginning of the output
(Xia et al., 2410.06916); here it moves on with the text, by its own length.

Only committed tokens are looked at, and the copy is gone when the score is there: what
sessions hold, drafted or reserved, is neither read nor changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from services.contract.errors import Overloaded, out_of_memory
from services.drafter.protocol import Ask
from services.engine.port import KVCache, Segment, SelfDrafting
from services.engine.skip_mask import SkipMask

if TYPE_CHECKING:
    from services.drafter.methods.self_draft.mask_search import MaskSearch

WINDOW = 32
"""Tokens that a mask is scored on."""
WINDOWS = 4
"""How many of these, from the beginning of an output: what a candidate reads is bounded."""

_log = logging.getLogger(__name__)


def window_of(ask: Ask) -> range | None:
    """Places in the text of its last whole window, None before there is one."""
    first = ask.prompt_length + 1
    whole = min((ask.committed_length - first) // WINDOW, WINDOWS)
    if whole < 1:
        return None
    return range(first + (whole - 1) * WINDOW, first + whole * WINDOW)


class MaskTrials:
    """Scores the masks of a search, one at a time. An error ends the search, nothing else."""

    def __init__(self, engine: SelfDrafting, search: MaskSearch) -> None:
        self._engine = engine
        self._search = search
        self._failed = False

    @property
    def mask(self) -> SkipMask:
        """The best one so far."""
        return self._search.best

    def step(self, sessions: Sequence[tuple[Ask, KVCache]]) -> bool:
        """Score one mask on the newest session that has a window.

        False: none has, there is no room for a copy of its K/V or no memory, or the search
        is over.
        """
        if self._failed or self._search.ended:
            return False
        found = next(filter(self._usable, reversed(sessions)), None)
        if found is None:
            return False
        try:
            self._try(*found)
        except Overloaded:
            return False
        except Exception as error:
            if out_of_memory(error):
                return False
            _log.error("the search for a skip mask failed and is over", exc_info=error)
            self._failed = True
        return True

    def _usable(self, session: tuple[Ask, KVCache]) -> bool:
        """Whether there is a window, and the model can read up to its end."""
        ask, cache = session
        window = window_of(ask)
        if window is None or cache.length < ask.prompt_length:
            return False
        known = max(ask.text[ask.prompt_length : window.stop]) < self._engine.vocab_size
        return known and window.stop - 1 <= self._engine.max_context_length

    def _try(self, ask: Ask, cache: KVCache) -> None:
        """Fork first: where there is no room, nothing is proposed."""
        window = window_of(ask)
        assert window is not None
        text = tuple(ask.text[: window.stop])
        branch = cache.fork(max(cache.length, len(text)))
        try:
            branch.rollback(ask.prompt_length)
            self._search.look_at(hash((ask.prompt_length, text)))
            mask = self._search.propose()
            self._note(mask, self._score(branch, text[ask.prompt_length :], mask))
        finally:
            branch.free()

    def _score(self, prompt: KVCache, output: Sequence[int], mask: SkipMask) -> float:
        """The share of the last `WINDOW` tokens of `output` that `mask`'s argmax gives."""
        before = output[:-1]
        segment = Segment(prompt, before, logits_from=len(before) - WINDOW)
        (rows,) = self._engine.forward([segment], mask)
        wanted = torch.tensor(output[-WINDOW:], device=rows.device)
        return float((rows.argmax(-1) == wanted).float().mean())

    def _note(self, mask: SkipMask, score: float) -> None:
        search, before = self._search, self._search.score
        if search.note(mask, score):
            _log.info("skip leaves out %s: scores %.2f, before %.2f", mask, score, before)
        if search.ended:
            _log.info(
                "the search for a skip mask is over: %d candidates, the best scores %.2f",
                search.candidates,
                search.score,
            )
