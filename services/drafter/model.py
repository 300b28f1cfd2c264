"""Drafting by a smaller causal LM with the same tokenizer.

Speculative decoding's draft model (Leviathan et al., 2211.17192), running ahead
of the verifier without waiting for it (AMUSD, McDanel, 2410.17375).

Greedy sessions get the draft model's argmax. Coupled ones get its sample with
the same noise as the target (Daliri, Musco and Suresh, 2408.07978), so the two
agree as often as their laws overlap. The others get draws, with the law they were
drawn from. All under the session's own parameters. With more than one candidate
a draft is a comb tree. A distilled drafter proposes only the tokens that its head
knows; the text may hold any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.common.engine import Engine, Segment
from services.common.engine.sampling import PartHead
from services.common.errors import InvalidRequest
from services.common.types import OpenDraft, WorkerDescription
from services.drafter.candidates import PROPOSALS, Place, candidates_at
from services.drafter.comb import Level
from services.drafter.model_state import ModelSession
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey


@dataclass(frozen=True, slots=True)
class _Feed:
    """Part of one step: `tokens` of a session enter its KV."""

    ask: Ask
    session: ModelSession
    tokens: Sequence[int]
    complete: bool
    """Text and trunk end with these tokens: what follows them can be chosen."""


class ModelDrafter:
    """One level of each session's draft per step, all sessions in one forward.

    A chain leaves token by token, a tree when its depth is reached. Prompts enter
    in chunks: a step feeds at most about `step_tokens` tokens, of which sessions
    that are already drafting take theirs first. `q_top`: most tokens of a law
    that tokens are drawn from. Proposed ids lie inside the vocabularies of both
    models; a session whose text holds others is not drafted.
    """

    modes = frozenset(PROPOSALS)
    samples = True
    trees = True

    def __init__(self, engine: Engine, *, step_tokens: int = 512, q_top: int = 64) -> None:
        self._engine = engine
        self._step_tokens = step_tokens
        self._q_top = q_top
        self._head = None if engine.head_ids is None else PartHead(engine.head_ids)
        self._sessions: dict[SessionKey, ModelSession] = {}

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Bound to the draft model and its tokenizer."""
        engine = self._engine
        return replace(
            worker,
            model=engine.model_id,
            model_fingerprint=engine.fingerprint,
            tokenizer_fingerprint=engine.bundle.fingerprint if engine.bundle else "",
            vocab_size=engine.vocab_size,
            max_context_length=engine.max_context_length,
            kv_capacity_tokens=engine.kv_tokens_capacity,
            dtype=engine.dtype,
        )

    def usage(self) -> KVUsage:
        """The engine's KV budget."""
        return KVUsage(self._engine.kv_tokens_used, self._engine.kv_tokens_capacity)

    def open(self, key: SessionKey, opening: OpenDraft) -> None:
        """Reserve KV for prompt and max_tokens; the prompt is fed by the next steps.

        Raises `Overloaded` without room, `InvalidRequest` for a prompt that the
        draft model cannot take.
        """
        vocab_size = min(opening.vocab_size or self._engine.vocab_size, self._engine.vocab_size)
        self._check(opening.prompt, vocab_size)
        longest = len(opening.prompt) + opening.sampling.max_tokens
        cache = self._engine.new_cache(min(longest, self._engine.max_context_length))
        self._sessions[key] = ModelSession(opening, cache, vocab_size)

    def rewind(self, key: SessionKey, length: int) -> None:
        """KV of what was replaced is dropped: a length change."""
        self._sessions[key].rewind(length)

    def close(self, key: SessionKey) -> None:
        """Return the reservation."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.cache.free()

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """The next level of every session whose text is in KV by now."""
        able = {ask.key: self._servable(ask) for ask in asks}
        feeds = self._plan([ask for ask in asks if able[ask.key]])
        answers = {feed.ask.key: answer for feed, answer in self._draft(feeds)}
        # Whoever was fed nothing waits for a later step, or can never be fed.
        return [answers.get(ask.key, Proposed(final=not able[ask.key])) for ask in asks]

    # --- decide ---------------------------------------------------------------

    def _check(self, prompt: Sequence[int], vocab_size: int) -> None:
        limit = self._engine.max_context_length
        if len(prompt) > limit:
            raise InvalidRequest("prompt", len(prompt), f"at most {limit} tokens")
        if max(prompt) >= vocab_size:
            raise InvalidRequest("prompt", max(prompt), f"token ids below {vocab_size}")

    def _servable(self, ask: Ask) -> bool:
        """Whether text fits the draft model's context and vocabulary, and may be drafted."""
        session = self._sessions[ask.key]
        session.follow(ask)
        if len(ask.text) > self._engine.max_context_length or not session.may_draft(ask):
            return False
        return max(ask.text[session.cache.length :], default=0) < session.vocab_size

    def _plan(self, asks: Sequence[Ask]) -> list[_Feed]:
        """Who is fed how much: drafting sessions whole, then prompts in order of opening."""
        ready = [ask for ask in asks if self._sessions[ask.key].caught_up]
        filling = [ask for ask in asks if not self._sessions[ask.key].caught_up]
        feeds = [self._feed(ask, self._step_tokens) for ask in ready]
        left = self._step_tokens - sum(len(feed.tokens) for feed in feeds)
        # A quarter is kept for prompts: however many sessions draft, a new one gets in.
        left = max(left, self._step_tokens // 4, 1)
        for ask in filling:
            if left > 0:
                feeds.append(self._feed(ask, left))
                left -= len(feeds[-1].tokens)
        return feeds

    def _feed(self, ask: Ask, most: int) -> _Feed:
        session = self._sessions[ask.key]
        return _Feed(ask, session, *session.feed(ask, most))

    # --- compute --------------------------------------------------------------

    def _draft(self, feeds: Sequence[_Feed]) -> Iterator[tuple[_Feed, Proposed]]:
        """Run one forward and choose a level for each session that was fed whole."""
        rows = self._engine.forward([_segment(feed) for feed in feeds])
        for feed in feeds:
            feed.session.caught_up = feed.complete
        places = [feed.session.place(feed.ask) for feed in feeds if feed.complete]
        levels = iter(self._levels(rows, places))
        for feed in feeds:
            yield feed, self._answer(feed, next(levels)) if feed.complete else _filling(feed)

    def _levels(self, rows: Sequence[Tensor], places: Sequence[Place]) -> list[Level]:
        if not places:
            return []
        return candidates_at(torch.cat(list(rows)), places, self._q_top, self._head)

    def _answer(self, feed: _Feed, level: Level) -> Proposed:
        """The draft that this level completes; without a finite law, nothing more either."""
        tree = feed.session.absorb(level, feed.ask, self._engine.max_context_length)
        return Proposed() if tree is None else Proposed(tree, final=not level.token_ids)


def _segment(feed: _Feed) -> Segment:
    first_row = len(feed.tokens) - 1 if feed.complete else len(feed.tokens)
    return Segment(feed.session.cache, feed.tokens, logits_from=first_row)


def _filling(feed: _Feed) -> Proposed:
    return Proposed(fed=len(feed.tokens))
