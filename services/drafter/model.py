"""Drafting by a smaller causal LM with the same tokenizer.

Speculative decoding's draft model (Leviathan et al., 2211.17192), running ahead
of the verifier without waiting for it (AMUSD, McDanel, 2410.17375).

Greedy sessions get the draft model's argmax. Coupled ones get its sample with
the same noise as the target (Daliri, Musco and Suresh, 2408.07978), so the two
agree as often as their laws overlap.

KV rule: entries cover a prefix of the text. Each step feeds every token that
has no entry, and at least the last one; never one that has. (AMUSD's published
loop feeds one token twice after a rollback, which shifts all that follow.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from services.common.engine import Engine, KVCache, Segment
from services.common.engine.sampling import NO_CHOICE, RowContext, choose
from services.common.errors import InvalidRequest
from services.common.types import (
    DraftTree,
    OpenDraft,
    Proposal,
    ResolvedSampling,
    VerifyMode,
    WorkerDescription,
)
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey

_PROPOSALS = {VerifyMode.GREEDY: Proposal.ONE_HOT, VerifyMode.COUPLED: Proposal.COUPLED}


@dataclass(slots=True)
class _Session:
    cache: KVCache
    mode: VerifyMode
    sampling: ResolvedSampling
    seed: int
    caught_up: bool = False


@dataclass(frozen=True, slots=True)
class _Feed:
    """Part of one step: `tokens` of a session enter its KV."""

    ask: Ask
    session: _Session
    tokens: Sequence[int]
    complete: bool
    """The text ends with these tokens: the next one can be chosen."""


class ModelDrafter:
    """One token per session and step, all sessions in one forward.

    Prompts enter in chunks: a step feeds at most about `step_tokens` tokens, of
    which sessions that are already drafting take theirs first. Proposed ids lie
    inside the draft model's own vocabulary (`engine.vocab_size`); a session whose
    text holds others is not drafted.
    """

    modes = frozenset(_PROPOSALS)

    def __init__(self, engine: Engine, *, step_tokens: int = 512) -> None:
        self._engine = engine
        self._step_tokens = step_tokens
        self._sessions: dict[SessionKey, _Session] = {}

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
        self._check(opening)
        known = [t for t in opening.sampling.stop_token_ids if t < self._engine.vocab_size]
        sampling = replace(opening.sampling, stop_token_ids=tuple(known))
        longest = len(opening.prompt) + opening.sampling.max_tokens
        cache = self._engine.new_cache(min(longest, self._engine.max_context_length))
        self._sessions[key] = _Session(cache, opening.mode, sampling, opening.seed)

    def rewind(self, key: SessionKey, length: int) -> None:
        """KV of what was replaced is dropped: a length change."""
        cache = self._sessions[key].cache
        cache.rollback(min(cache.length, length))

    def close(self, key: SessionKey) -> None:
        """Return the reservation."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.cache.free()

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """The next token of every session whose text is in KV by now."""
        able = {ask.key: self._servable(ask) for ask in asks}
        feeds = self._plan([ask for ask in asks if able[ask.key]])
        answers = {feed.ask.key: answer for feed, answer in self._draft(feeds)}
        # Whoever was fed nothing waits for a later step, or can never be fed.
        return [answers.get(ask.key, Proposed(final=not able[ask.key])) for ask in asks]

    # --- decide ---------------------------------------------------------------

    def _check(self, opening: OpenDraft) -> None:
        limit, vocab = self._engine.max_context_length, self._engine.vocab_size
        if len(opening.prompt) > limit:
            raise InvalidRequest("prompt", len(opening.prompt), f"at most {limit} tokens")
        if max(opening.prompt) >= vocab:
            raise InvalidRequest("prompt", max(opening.prompt), f"token ids below {vocab}")

    def _servable(self, ask: Ask) -> bool:
        """Whether the text fits the draft model's context and vocabulary."""
        if len(ask.text) > self._engine.max_context_length:
            return False
        pending = ask.text[self._sessions[ask.key].cache.length :]
        return max(pending, default=0) < self._engine.vocab_size

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
        start = min(session.cache.length, len(ask.text) - 1)
        tokens = tuple(ask.text[start : start + most])
        session.cache.rollback(start)
        return _Feed(ask, session, tokens, start + len(tokens) == len(ask.text))

    # --- compute --------------------------------------------------------------

    def _draft(self, feeds: Sequence[_Feed]) -> Iterator[tuple[_Feed, Proposed]]:
        """Run one forward and choose a token for each session that was fed whole."""
        rows = self._engine.forward([_segment(feed) for feed in feeds])
        for feed in feeds:
            feed.session.caught_up = feed.complete
        whole = [feed for feed in feeds if feed.complete]
        tokens = iter(choose(torch.cat(rows), [_context(feed) for feed in whole]) if whole else ())
        for feed in feeds:
            yield feed, _proposed(feed, next(tokens)) if feed.complete else _filling(feed)


def _segment(feed: _Feed) -> Segment:
    first_row = len(feed.tokens) - 1 if feed.complete else len(feed.tokens)
    return Segment(feed.session.cache, feed.tokens, logits_from=first_row)


def _context(feed: _Feed) -> RowContext:
    session = feed.session
    return RowContext(session.mode, session.sampling, session.seed, feed.ask.position)


def _proposed(feed: _Feed, token: int) -> Proposed:
    if token == NO_CHOICE:
        return Proposed(final=True)
    return Proposed(DraftTree((token,), proposal=_PROPOSALS[feed.session.mode]))


def _filling(feed: _Feed) -> Proposed:
    return Proposed(fed=len(feed.tokens))
