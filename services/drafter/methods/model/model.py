"""Drafting by a smaller causal LM with the same tokenizer.

Speculative decoding's draft model (Leviathan et al., 2211.17192), running ahead
of the verifier without waiting for it (AMUSD, McDanel, 2410.17375).

Greedy sessions get the draft model's argmax. Coupled ones get its sample with
the same noise as the target (Daliri, Musco and Suresh, 2408.07978), so the two
agree as often as their laws overlap. The others get draws, with the law they were
drawn from. All under the session's own parameters. With more than one candidate
a draft is a comb tree. A head proposes only the tokens that it knows; the text may hold any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, islice

import torch
from torch import Tensor

from services.contract.errors import InvalidRequest
from services.contract.types import DraftTree, OpenDraft, VerifyMode, WorkerDescription
from services.drafter.comb import MAX_TREE_NODES, Level
from services.drafter.methods.graph.draft_graph import GraphRules
from services.drafter.methods.graph.graph_state import NODES_IN_KV, GraphSession
from services.drafter.methods.graph.tree_growth import GrowthPlan
from services.drafter.methods.model.candidates import PROPOSALS, Place, candidates_at
from services.drafter.methods.model.forms import TextForm, form_of
from services.drafter.methods.model.model_state import ModelSession
from services.drafter.methods.model.places import PLACES_IN_KV, Places
from services.drafter.methods.model.shared_prompts import SharedPrompts
from services.drafter.methods.model.stepping import Feed, Stepping
from services.drafter.methods.self_draft.borrowing import Borrowing
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey
from services.engine.port import Engine, KVCache, Segment, freed_on_error
from services.engine.sampling import NO_CHOICE, PartHead, highest_logits
from services.engine.structure import Structures, structures_of

TREE_RULES = GraphRules(max_nodes=MAX_TREE_NODES, sibling_share=0.0, leaf_weight=0.0, repeat=None)
"""A tree: nothing is merged, and the shape alone says what is left out."""
_TREE_MODES = (VerifyMode.GREEDY, VerifyMode.COUPLED)


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a step."""

    ask: Ask
    session: Stepping
    fed: Feed


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
    _chain: type[ModelSession] = ModelSession
    _tree: type[GraphSession] = GraphSession
    _places: type[Places] = Places

    def __init__(
        self,
        engine: Engine,
        *,
        step_tokens: int = 512,
        q_top: int = 64,
        trees: Callable[[], GrowthPlan] | None = None,
        borrowing: Borrowing | None = None,
    ) -> None:
        """`trees`: makes what decides how far trees grow in GREEDY and COUPLED, each its own.

        Without it every tree is a comb. `borrowing`: the sessions draft from K/V of the
        verifier that runs on `engine`, too; they have combs only.
        """
        self._engine = engine
        self._borrowing = borrowing
        self._trees = trees
        self._plans = {} if trees is None else {mode: trees() for mode in _TREE_MODES}
        self._step_tokens = step_tokens
        self._q_top = q_top
        self._head = None if engine.head_ids is None else PartHead(engine.head_ids)
        self._sessions: dict[SessionKey, Stepping] = {}
        self.prompts = SharedPrompts(engine)

    @cached_property
    def structures(self) -> Structures | None:
        """What compiles the forms of outputs.

        To be set where strangers ask for forms: left out, they are compiled where drafts are made.
        """
        return structures_of(self._engine)

    @property
    def engine(self) -> Engine:
        """What runs the draft model."""
        return self._engine

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
        """The engine's KV budget; zeros where that is its verifier's."""
        if self._borrowing is not None:
            return KVUsage()
        engine = self._engine
        copied = self.prompts.copied
        return KVUsage(engine.kv_tokens_used, engine.kv_tokens_capacity, engine, copied)

    def open(self, key: SessionKey, opening: OpenDraft) -> None:
        """Reserve KV for prompt and max_tokens; the prompt is fed by the next steps.

        Raises `Overloaded` without room, `InvalidRequest` for a prompt that the
        draft model cannot take.
        """
        vocab_size, reserve = self._bounds(opening)
        try:
            session = self._session(key, opening, reserve, vocab_size)
            self._sessions[key] = session
            session.form = self._form(key, opening)
        except BaseException:
            self.close(key)
            raise

    def places(self, key: SessionKey, opening: OpenDraft) -> Places:
        """What the draft model may say of places in front of a session's text; see `ahead`.

        The K/V is the caller's to free, after `close`. Raises as `open` does.
        """
        vocab_size, reserve = self._bounds(opening)
        try:
            with freed_on_error(self._own_cache(key, opening, reserve + PLACES_IN_KV)) as cache:
                form, longest = self._form(key, opening), self._engine.max_context_length
                return self._places(opening, cache, vocab_size, longest, form)
        except BaseException:
            self.prompts.close(key)
            raise

    def rewind(self, key: SessionKey, length: int) -> None:
        """KV of what was replaced is dropped: a length change."""
        self._sessions[key].rewind(length)

    def close(self, key: SessionKey) -> None:
        """Return the reservation."""
        self.prompts.close(key)
        session = self._sessions.pop(key, None)
        if session is not None:
            session.cache.free()
        if self._borrowing is not None:
            self._borrowing.close(key)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """The next level of every session whose text is in KV by now."""
        segments = self._highest(asks)
        if segments:
            rows = torch.cat(self._engine.forward(segments))
            vocab_size = self._sessions[asks[0].key].vocab_size
            return [*map(_only, highest_logits(rows[:, :vocab_size]).tolist())]
        answers = _given({ask.key: self._held(ask) for ask in asks})
        going = [ask.key for ask in asks if ask.key not in answers]
        waiting = [key for key in going if not self.prompts.ready(key, going)]
        answers |= {key: Proposed() for key in waiting}
        answers |= self._ready([ask for ask in asks if ask.key not in answers])
        if parts := self._plan([ask for ask in asks if ask.key not in answers]):
            answers |= {part.ask.key: answer for part, answer in self._draft(parts)}
        # Whoever was fed nothing waits for a later step, or for a prompt that another one reads.
        return [answers.get(ask.key, Proposed()) for ask in asks]

    def idle(self, asks: Iterable[Ask]) -> bool:  # noqa: ARG002
        """There is nothing beside drafting."""
        return False

    # --- decide ---------------------------------------------------------------

    def _highest(self, asks: Sequence[Ask]) -> list[Segment]:
        """What to feed where every session drafts the highest logit; else nothing."""
        if self._head is not None or self._borrowing is not None:
            return []
        sessions = [self._sessions[ask.key] for ask in asks]
        sizes = {session.vocab_size for session in sessions}
        if len(sizes) != 1:
            return []
        [vocab_size] = sizes
        chains: list[tuple[ModelSession, Sequence[int]]] = []
        left = self._step_tokens
        for ask, session in zip(asks, sessions, strict=True):
            if type(session) is not ModelSession or not session.argmax(ask):
                return []
            text = ask.text
            fresh = max(1, len(text) - session.cache.length)
            left -= fresh
            known = len(text) <= self._engine.max_context_length
            if left < 0 or not known or max(text[-fresh:]) >= vocab_size:
                return []
            chains.append((session, text))
        tokens = [(own.cache, own.next_tokens(text)) for own, text in chains]
        return [Segment(cache, own, None, len(own) - 1) for cache, own in tokens]

    def _session(
        self, key: SessionKey, opening: OpenDraft, reserve: int, vocab_size: int
    ) -> Stepping:
        """A new session with KV for a text of `reserve` tokens."""
        longest = self._engine.max_context_length
        plan = self._growth(opening)
        if plan is None or opening.num_candidates == 1:
            with freed_on_error(self._cache(key, opening, reserve)) as cache:
                return self._chain(opening, cache, vocab_size, longest)
        with freed_on_error(self._own_cache(key, opening, reserve + NODES_IN_KV)) as cache:
            return self._tree(opening, cache, vocab_size, longest, TREE_RULES, plan, by_rank=True)

    def _growth(self, opening: OpenDraft) -> GrowthPlan | None:
        """How far the session's trees grow: one that shares nothing finds that out for itself."""
        shared = self._plans.get(opening.mode)
        if shared is None or self._trees is None or opening.phrase_scope:
            return shared
        return self._trees()

    def _cache(self, key: SessionKey, opening: OpenDraft, reserve: int) -> KVCache:
        """KV of a session's own, or what it has until it can borrow."""
        if self._borrowing is not None:
            return self._borrowing.new_cache()
        return self._own_cache(key, opening, reserve)

    def _own_cache(self, key: SessionKey, opening: OpenDraft, reserve: int) -> KVCache:
        """KV of a session's own, whose prompt others may copy."""
        return self.prompts.open(key, opening, reserve)

    def _ready(self, asks: Sequence[Ask]) -> dict[SessionKey, Proposed]:
        """The drafts that need no step."""
        return _given({ask.key: self._sessions[ask.key].drafted(ask) for ask in asks})

    def _bounds(self, opening: OpenDraft) -> tuple[int, int]:
        """How many token ids both models know, and the tokens of text to reserve K/V for.

        Raises InvalidRequest for a prompt that the draft model cannot take.
        """
        engine = self._engine
        vocab_size = min(opening.vocab_size or engine.vocab_size, engine.vocab_size)
        self._check(opening.prompt, vocab_size)
        longest = len(opening.prompt) + opening.sampling.max_tokens
        return vocab_size, min(longest, engine.max_context_length)

    def _form(self, key: SessionKey, opening: OpenDraft) -> TextForm | None:
        """What the output must be, where that is to be followed."""
        wanted = opening.sampling.response_format
        if wanted is None:
            return None
        return form_of(wanted, len(opening.prompt), self.structures, str(key[0]))

    def _check(self, prompt: Sequence[int], vocab_size: int) -> None:
        limit = self._engine.max_context_length
        if len(prompt) > limit:
            raise InvalidRequest("prompt", len(prompt), f"at most {limit} tokens")
        if max(prompt) >= vocab_size:
            raise InvalidRequest("prompt", max(prompt), f"token ids below {vocab_size}")

    def _held(self, ask: Ask) -> Proposed | None:
        """The answer to an ask that nothing can be drafted for, now or from this text."""
        session = self._sessions[ask.key]
        session.follow(ask)
        if self._borrowing is not None:
            held = self._borrowing.held(ask, session)
            if held is not None:
                return held
        if len(ask.text) > self._engine.max_context_length or not session.may_draft(ask):
            return Proposed(final=True)
        unknown = max(ask.text[session.cache.length :], default=0) >= session.vocab_size
        return Proposed(final=True) if unknown else None

    def _plan(self, asks: Sequence[Ask]) -> list[Part]:
        """Who is fed how much: drafting sessions whole, then prompts in order of opening."""
        ready = [ask for ask in asks if self._sessions[ask.key].caught_up]
        filling = [ask for ask in asks if not self._sessions[ask.key].caught_up]
        parts = [self._part(ask, self._step_tokens) for ask in ready]
        left = self._step_tokens - sum(len(part.fed.token_ids) for part in parts)
        # A quarter is kept for prompts: however many sessions draft, a new one gets in.
        left = max(left, self._step_tokens // 4, 1)
        for ask in filling:
            if left > 0:
                parts.append(self._part(ask, left))
                left -= len(parts[-1].fed.token_ids)
        return parts

    def _part(self, ask: Ask, most: int) -> Part:
        session = self._sessions[ask.key]
        return Part(ask, session, session.feed(ask, most))

    # --- compute --------------------------------------------------------------

    def _draft(self, parts: Sequence[Part]) -> Iterator[tuple[Part, Proposed]]:
        """Run one forward and choose candidates for each session that was fed whole."""
        rows = self._forward(parts)
        for part in parts:
            part.session.entered(part.fed)
        places = [part.session.places(part.ask) if part.fed.rows else [] for part in parts]
        levels = iter(self._levels(rows, list(chain.from_iterable(places))))
        for part in parts:
            own = list(islice(levels, part.fed.rows))
            yield part, self._answer(part, own)

    def _forward(self, parts: Sequence[Part]) -> list[Tensor]:
        """Logits for each part, in order."""
        return self._engine.forward([segment_of(part) for part in parts])

    def _levels(self, rows: Sequence[Tensor], places: Sequence[Place]) -> list[Level]:
        if not places:
            return []
        return candidates_at(torch.cat(list(rows)), places, self._q_top, self._head)

    def _answer(self, part: Part, levels: Sequence[Level]) -> Proposed:
        if not levels:
            return Proposed(fed=len(part.fed.token_ids))
        return part.session.absorb(levels, part.ask)


def _given(answers: Mapping[SessionKey, Proposed | None]) -> dict[SessionKey, Proposed]:
    return {key: answer for key, answer in answers.items() if answer is not None}


@lru_cache(maxsize=1 << 12)
def _only(token: int) -> Proposed:
    """A draft of one token, or that there is none."""
    return Proposed(final=True) if token == NO_CHOICE else Proposed(DraftTree((token,)))


def segment_of(part: Part) -> Segment:
    """What a part brings into its session's KV, with logits where something is chosen."""
    fed = part.fed
    first_row = len(fed.token_ids) - fed.rows
    return Segment(part.session.cache, fed.token_ids, fed.parents, first_row, fed.base)
