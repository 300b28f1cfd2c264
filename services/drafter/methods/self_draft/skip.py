"""Drafting by the target itself with some of its sub-layers skipped.

Draft & Verify (Zhang et al., 2309.08168): the same weights, attention and MLP of
some layers left out by a mask, no second model and no training. A draft ends after
the first token that the skipping model is not sure of (`exits`). The mask comes
from `paceline train skip-mask`, or is the one that SWIFT starts from (Xia et al.,
2410.06916).

In the paper drafter and verifier are one process: each draft starts from the whole
model's K/V of all verified text. So it is here where the drafter stands beside its
verifier and borrows (`borrowing`). As a pool of its own it holds a copy of the
weights. Of a session, the whole model then reads the prompt, once; the output, drafted
or committed, enters K/V through the skipping model, as the whole model's K/V of it is
elsewhere. So acceptance is a little lower than the paper's, and falls with the length
of the output; a mask should be searched for in the same manner. The first token after
the prompt is the whole model's own.

A search for a better mask (SWIFT, see `mask_search`) may go on meanwhile, one for all
sessions. A better one takes the old one's place for all of them at once: the K/V of
their outputs is dropped, and read again by the new one with the next draft, in one
forward or, where that is long, several. So a step has one mask, and no session is left
with a bad one. The mask depends on committed texts, and changes only while no draft is
owed; what is drawn is drawn from the law that is sent, whichever mask gave it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.contract.types import OpenDraft
from services.drafter.comb import Level
from services.drafter.methods.model.candidates import Place
from services.drafter.methods.model.model import ModelDrafter, Part, segment_of
from services.drafter.methods.self_draft.borrowing import Borrowing
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.mask_search import MaskSearch
from services.drafter.methods.self_draft.mask_trials import MaskTrials
from services.drafter.methods.self_draft.skip_state import SkipSession
from services.drafter.protocol import Ask, SessionKey
from services.engine.port import SelfDrafting, freed_on_error
from services.engine.skip_mask import SkipMask


class SkipDrafter(ModelDrafter):
    """A model drafter whose model is the target with `mask` for all but the prompts.

    `exit_rule`: every session's at its start. `search`: starts from `mask` and replaces it
    whenever it finds a better one; left out: the mask stays. Raises StartError for an
    architecture that cannot skip, a mask of another size, or a model that is no target.
    """

    def __init__(
        self,
        engine: SelfDrafting,
        mask: SkipMask,
        exit_rule: Exit,
        *,
        step_tokens: int = 512,
        q_top: int = 64,
        borrowing: Borrowing | None = None,
        search: MaskSearch | None = None,
    ) -> None:
        super().__init__(engine, step_tokens=step_tokens, q_top=q_top, borrowing=borrowing)
        if borrowing is not None and search is not None:
            raise StartError("skip_search: beside a verifier it would be in its way; use a pool")
        if mask.layers != engine.num_layers:
            raise StartError(
                f"skip: the mask is for {mask.layers} layers, {engine.model_id} has "
                f"{engine.num_layers}"
            )
        engine.require_skipping()
        self._target = engine
        self._mask = mask
        self._exit_rule = exit_rule
        self._trials = MaskTrials(engine, search) if search is not None else None

    def idle(self, asks: Iterable[Ask]) -> bool:
        """Score one candidate of the search."""
        if self._trials is None:
            return False
        done = self._trials.step([(ask, self._sessions[ask.key].cache) for ask in asks])
        if self._trials.mask != self._mask:
            self._change(self._trials.mask)
        return done

    def _change(self, mask: SkipMask) -> None:
        self._mask = mask
        for session in self._sessions.values():
            cast(SkipSession, session).forget_output()

    def _session(
        self, key: SessionKey, opening: OpenDraft, reserve: int, vocab_size: int
    ) -> SkipSession:
        longest = self._engine.max_context_length
        with freed_on_error(self._cache(key, opening, reserve)) as cache:
            return SkipSession(opening, cache, vocab_size, longest, self._exit_rule)

    def _forward(self, parts: Sequence[Part]) -> list[Tensor]:
        """Prompts by the whole model, all else by the skipping one."""
        masks = [None if _reads_prompt(part) else self._mask for part in parts]
        logits: dict[int, Tensor] = {}
        for mask in (None, self._mask):
            mine = [i for i, own in enumerate(masks) if own is mask]
            rows = self._target.forward([segment_of(parts[i]) for i in mine], mask)
            logits.update(zip(mine, rows, strict=True))
        return [logits[i] for i in range(len(parts))]

    def _levels(self, rows: Sequence[Tensor], places: Sequence[Place]) -> list[Level]:
        """Each level with the raw probability of its first candidate."""
        levels = super()._levels(rows, places)
        if not levels:
            return levels
        firsts = [level.token_ids[0] if level.token_ids else 0 for level in levels]
        sure = _probabilities(torch.cat(list(rows)), firsts)
        return [replace(level, confidence=p) for level, p in zip(levels, sure, strict=True)]


def _reads_prompt(part: Part) -> bool:
    return part.session.cache.length < part.ask.prompt_length


def _probabilities(logits: Tensor, tokens: Sequence[int]) -> list[float]:
    """The softmax of each row of `logits` [R, V] at one token."""
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
    found: list[float] = (chosen - logits.logsumexp(dim=-1)).exp().tolist()
    return found
