"""The core of a verifier that runs its sessions.

Decide (whose turn it is, with what draft, and a share of every prompt) → forward (one packed pass)
→ hear (what came meanwhile) → absorb (the texts grow, a frame a link leaves). Plain, synchronous,
single-threaded; `handle` never runs the model.

What a step decided leaves before anything of its session can fail. Credit is looked at before a
step, and cuts nothing of what was judged. A session that gives its K/V up keeps text and mailbox.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import TypeVar, assert_never

from torch import Tensor

from services.contract.errors import out_of_memory
from services.contract.frames import (
    DraftFrame,
    DraftName,
    DraftRow,
    Grants,
    StepFrame,
    StepRow,
    draft_key,
    draft_rows,
    granted,
    step_frame,
)
from services.contract.states import Fate
from services.contract.types import FailureReason, Progress, Proposal, WorkerDescription
from services.contract.worker_messages import (
    PROTOCOL,
    EndSession,
    PromptScores,
    SessionGone,
    SessionStarted,
    SetDraftedFor,
    SetWindow,
    StartVerify,
    TextStates,
    VerifierCommand,
    VerifierEvent,
)
from services.engine.lending import Ahead
from services.engine.port import Capability, Engine
from services.engine.sampling import rounding
from services.engine.structure import StructureError
from services.grammar.spending import SLICE
from services.runtime.proposer import LocalAsk, LocalDraft, Proposer
from services.runtime.step_records import StepRecord
from services.scheduling.draft_budget import DraftBudget
from services.scheduling.offers import Judged, Offer, Pacing
from services.scheduling.step_time import StepTimeModel
from services.scheduling.turns import exchange
from services.verifier.caches import Caches
from services.verifier.description import describe
from services.verifier.fed_text import by_seniority
from services.verifier.forms import FormTime, crowded
from services.verifier.options import VerifierOptions
from services.verifier.refusals import (
    Limits,
    Refusal,
    ask_form,
    check_open,
    check_tree,
    explain,
    open_matcher,
)
from services.verifier.running.deciding import decide_turns
from services.verifier.running.dropped import DroppedDrafts
from services.verifier.running.mailbox import NOTHING
from services.verifier.running.session import Key, RunningSession
from services.verifier.running.telling import (
    logprobs,
    said,
    state_rows,
    step_row,
    stood_out,
    top_rows,
    who_waits,
)
from services.verifier.running.turns import Decided, Turn, prompt_turn, step_turn
from services.verifier.scheduling import PrefillPace, share_prefill
from services.verifier.scores import most_rows, score_rows, within
from services.verifier.states import StateWatch

MOST_REST = 0.25
"""Seconds after which whoever rests looks again, and tells who waits."""
FOLLOWING = 5e-3
"""Seconds before a step for texts that are followed to their forms."""
PREFIX_SHARE = 0.5
"""Of the K/V budget, unless told otherwise: what texts that ended may hold at most."""
MOST_SAID = 254
"""Draft tokens that one step may accept: a column's numbers, with one token more, end at 255."""
MOST_OPENINGS = (1 << 16) - 1
MOST_DRAFTS_HERE = 1 << 20
"""Drafts of the verifier's own in one opening, each of which has a key."""

_log = logging.getLogger(__name__)
T = TypeVar("T")
Emit = Callable[[int, VerifierEvent], None]
"""(link number, event)."""


class RunningCore:
    """Runs the sessions of all links with one engine.

    Nothing raises: what goes wrong becomes a `SessionGone` of its session. Where memory runs out,
    texts that ended go first, and what failed is tried once more.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        emit: Emit,
        worker_id: str,
        options: VerifierOptions | None = None,
        pacing: Pacing | None = None,
        proposer: Proposer | None = None,
        absorb: Callable[[], object] | None = None,
    ) -> None:
        """`absorb` hands in, by `handle`, what has arrived; it is called behind each forward.

        `pacing`: the policy; left out: the adaptive one, to which no step times are told.
        """
        self._options = options or VerifierOptions()
        self._engine = engine
        self._emit = emit
        self._worker_id = worker_id
        self._pacing = pacing or DraftBudget()
        self._proposer = proposer
        self._absorb_commands = absorb
        self._rounding = rounding(engine.dtype)
        self._limits = Limits(
            engine.vocab_size,
            engine.max_context_length,
            trees=Capability.TREES in engine.capabilities,
        )
        self._sessions: dict[Key, RunningSession] = {}
        self._pace = PrefillPace(
            self._options.target_step_ms,
            self._options.max_step_tokens,
            self._options.prefill_slowdown,
        )
        self._line = StepTimeModel()
        """Seconds of a step without prompts over its rows, as measured."""
        self._form_time = FormTime()
        self._steps = 0
        self._numbers = count(1)
        self._caches = Caches(
            engine, self._prefix_tokens(), self._options.lending, self._options.on_preempt
        )
        self._states = StateWatch(engine, self._options.on_states)
        self._recent_ms: deque[float] = deque(maxlen=16)
        self._dropped = DroppedDrafts()
        self._in_step: dict[RunningSession, Turn] = {}
        """Those whose drafts have K/V that nobody judged yet."""
        self._again = -math.inf
        """When to look again, if nothing comes before; in seconds."""
        self._report_at = -math.inf

    # --- commands ---------------------------------------------------------------

    def handle(self, link: int, command: VerifierCommand, arrived: float | None = None) -> None:
        """Absorb one command; no forward happens here. `arrived` None: now."""
        arrived = self._options.clock() if arrived is None else arrived
        self._again = -math.inf
        match command:
            case DraftFrame():
                self._take_drafts(link, command, arrived)
            case Grants():
                for handle, limit in granted(command):
                    if (session := self._sessions.get((link, handle))) is not None:
                        session.grant(limit, arrived)
            case StartVerify():
                self._start(link, command, arrived)
            case EndSession(handle):
                self._close((link, handle))
                self._caches.release((link, handle))
            case SetWindow(handle, window):
                if (session := self._sessions.get((link, handle))) is not None:
                    session.window = min(window, session.opening.window)
                    # Its drafter has been given another, too.
                    session.told_window = None
            case SetDraftedFor(handle, drafted_for):
                if (session := self._sessions.get((link, handle))) is not None:
                    session.drafted_for = drafted_for
                    # One that comes is to hear how far to be ahead.
                    session.told_window = None
            case _:
                assert_never(command)

    def drop_link(self, link: int) -> None:
        """Free the sessions of a broken link, and only those."""
        self._again = -math.inf
        for key in [key for key in self._sessions if key[0] == link]:
            self._close(key)
        self._caches.drop_link(link)

    def _start(self, link: int, opening: StartVerify, arrived: float) -> None:
        key = (link, opening.handle)
        known = self._sessions.get(key)
        if known is not None and opening.opening <= known.opening.opening:
            if known.opened and opening.opening == known.opening.opening:
                self._emit(link, SessionStarted(opening.handle, opening.opening))
            return
        self._close(key)
        try:
            self._open(key, opening, arrived)
        except Exception as error:
            self._gone(key, opening.opening, error)

    def _open(self, key: Key, opening: StartVerify, arrived: float) -> None:
        check_open(opening, opening.output, self._limits)
        if max(opening.opening, opening.term) > MOST_OPENINGS:
            raise Refusal(FailureReason.INVALID, "opening, term: too many")
        form = ask_form(opening, self._options.structures, str(key[0]))
        session = RunningSession(key[0], opening, arrived, form, next(self._numbers))
        self._spared(partial(self._caches.open, session))
        self._sessions[key] = session
        layers = opening.state_layers
        if opening.method and self._proposer is not None:
            self._proposer.open(key, opening)
            session.drafts_here = True
            layers = self._proposer.needed_states(opening.method).layers
        self._states.open(session, layers)
        # A text that is to be followed first waits for a step.
        (self._note_prefilled if opening.output else self._take_form)(session)

    def _take_drafts(self, link: int, frame: DraftFrame, arrived: float) -> None:
        """Into the mailboxes; what no correct drafter sends is nothing."""
        try:
            for draft in draft_rows(frame):
                session = self._sessions.get((link, draft.handle))
                if session is not None and self._sound(draft):
                    self._dropped.put(session.mailbox, draft, session.output, arrived)
                    size, final = len(draft.tree), draft.final
                    self._pacing.drafted(session.key, size, draft.draft_ms, final)
        except Exception as error:
            _log.warning("drafts that cannot be read: %s", error)

    def _sound(self, draft: DraftRow) -> bool:
        """Whether a draft is a tree as it should be, with a law for each place drawn at."""
        tree = draft.tree
        if tree.parents is None:
            if max(tree.token_ids, default=0) >= self._limits.vocab_size:
                return False
        else:
            try:
                check_tree(tree, len(tree), self._limits)
            except Refusal:
                return False
        if tree.proposal is not Proposal.SAMPLED:
            return tree.q is None
        return tree.q is None or len(tree.q) == len(set(tree.every_parent))

    def _take_form(self, session: RunningSession) -> None:
        """Go on with the form, where that is there; it may turn out to be none."""
        form, structures = session.form, self._options.structures
        if form is not None and form.done and structures is not None:
            try:
                if session.matcher is None:
                    session.matcher = open_matcher(session.opening, form, structures)
                followed = session.follow_text(SLICE)
            except Exception as error:
                self._fail(session, error)
                return
            self._form_time.took(session, self._options.clock())
            if not followed:
                return
            session.form = None
        self._note_prefilled(session)

    def _close(self, key: Key, *, sound: bool = True) -> None:
        if (session := self._sessions.pop(key, None)) is None:
            return
        self._states.close(session)
        self._dropped.closed(session.mailbox)
        turn = self._in_step.pop(session, None)
        sound = sound and (turn is None or _trimmed(turn))
        self._caches.close(session, sound=sound)
        self._pacing.forget(key)
        if session.drafts_here and self._proposer is not None:
            self._proposer.close(key)

    def _prefix_tokens(self) -> int:
        wanted = self._options.prefix_cache_tokens
        return int(PREFIX_SHARE * self._engine.kv_tokens_capacity) if wanted is None else wanted

    # --- the step ---------------------------------------------------------------

    def patience(self) -> float:
        """Seconds to rest where nothing can be done before something comes; 0 = look now."""
        now = self._options.clock()
        if self._sessions and now >= self._report_at:
            self._report_at = now + MOST_REST
            for link, waiting in who_waits(self._sessions.values()).items():
                self._emit(link, waiting)
        if now >= self._again or self._followers():
            return 0.0
        return self._again - now

    def step(self) -> bool:
        """One forward for every session with something to do; False = nothing to do."""
        self._prepare()
        began = self._options.clock()
        turns = self._take_turns()
        turns += self._take_prompts(turns)
        if not turns:
            return self._rest_awhile()
        started, started_ns = self._options.clock(), time.time_ns()
        self._steps += 1
        computed = self._forward(turns)
        self._in_step = {turn.session: turn for turn, *_ in computed if turn.verifies}
        self._feed(computed)
        if self._absorb_commands is not None:
            self._absorb_commands()
        self._conclude(turns, began, started, started_ns)
        return True

    def _rest_awhile(self) -> bool:
        """Nothing can be in a step: draft ahead, or rest until something comes."""
        if self._followers():
            return True
        if self._proposer is not None:
            asks = [self._ask(own) for own in self._sessions.values() if own.drafts_here]
            if asks and self._drafts_ahead(self._proposer, asks):
                return True
        if self._sessions:
            now = self._options.clock()
            held = [self._held_until(own) for own in self._sessions.values() if own.held]
            self._again = min([now + MOST_REST, *[until for until in held if until > now]])
        return False

    def _drafts_ahead(self, proposer: Proposer, asks: Sequence[LocalAsk]) -> bool:
        """Whether an idle moment was of use to whoever drafts here."""
        try:
            return proposer.idle(asks)
        except Exception:
            _log.exception("no drafts of the verifier's own while it rests")
            return False

    def _prepare(self) -> None:
        """Go on with what came meanwhile: forms, room for preempted sessions, shared beginnings."""
        until = self._options.clock() + FOLLOWING
        for follower in self._followers():
            self._take_form(follower)
            if self._options.clock() > until:
                break
        while any(own.preempted for own in self._sessions.values()):
            session = self._caches.to_bring_back(self._sessions.values())
            if session is None:
                break
            self._at_its_cost(session, partial(self._caches.open, session))
            if not session.preempted:
                self._note_prefilled(session)
        self._settle()

    def _followers(self) -> list[RunningSession]:
        """Whose texts may be followed to their forms now; whose was least comes first."""
        found = [own for own in self._sessions.values() if own.form is not None and own.form.done]
        if not found:
            return found
        rest = self._rests()
        found = [own for own in found if not (rest and own.heavy)]
        return sorted(found, key=lambda own: own.matcher.spending.seconds if own.matcher else 0.0)

    def _rests(self) -> bool:
        """Whether sessions with heavy forms leave the time to others."""
        return self._form_time.rest(self._sessions.values(), self._options.clock()) > 0

    def _settle(self) -> None:
        """Copy what other sessions were fed first, where that is there."""
        for session in [own for own in self._sessions.values() if not own.filled]:
            shared = session.shared
            if shared is not None and shared.waits and self._at_its_cost(session, shared.settle):
                session.forget_unscored()
                self._note_prefilled(session)

    def _take_turns(self) -> list[Turn]:
        """Sessions that can be in the step, with what they have verified of their drafts.

        Where not all of them fit, whoever was served longest ago comes first; within a tenant's
        turns priorities decide.
        """
        ready = [own for own in self._sessions.values() if own.ready and not own.preempted]
        if not ready:
            return []
        counts = self._allotted(ready)
        if sum(counts.values()) + len(ready) > self._options.max_step_tokens:
            ready.sort(key=lambda own: own.served_in)
            ready = exchange(ready, lambda own: own.tenant_of_turns, "served_in")
        return self._turns_of(ready, counts)

    def _turns_of(self, ready: Sequence[RunningSession], counts: dict[Key, int]) -> list[Turn]:
        forms = any(own.matcher is not None for own in ready)
        rest = forms and self._rests()
        alone = not forms or not crowded(self._sessions.values(), self._options.clock())
        turns: list[Turn] = []
        busy: set[RunningSession] = set()
        used = 0
        for session in ready:
            if session.held or (rest and session.heavy):
                continue
            if used >= self._options.max_step_tokens:
                break
            # One that was served before may have needed the room.
            if session.preempted or not self._has_room(session, busy):
                continue
            count = counts[session.key]
            taken = NOTHING
            if count:
                taken = session.mailbox.first_tokens(
                    count, min(session.depth, session.room, MOST_SAID)
                )
            turns.append(step_turn(session, taken))
            busy.add(session)
            session.served_in = self._steps + 1
            used += 1 + len(taken.tree)
            rest = rest or (session.heavy and not alone)
        return turns

    def _allotted(self, ready: Sequence[RunningSession]) -> dict[Key, int]:
        """How much of its draft each of these may have verified; who is to be held is marked."""
        self._propose(ready)
        now = self._options.clock()
        allotted = self._pacing.allot([self._offer(own) for own in ready])
        counts = {}
        for session, own in zip(ready, allotted, strict=True):
            counts[session.key] = min(own.tokens, session.window)
            session.held = own.hold_s > 0 and now < session.ready_since + own.hold_s
            session.hold_s = own.hold_s
            if session.held and session.held_since is None:
                session.held_since = now
        return counts

    def _offer(self, session: RunningSession) -> Offer:
        box, opening = session.mailbox, session.opening
        # Where nobody drafts there is nothing to pace, and to wait for.
        pacing = opening.pacing if session.drafted_for or session.drafts_here else ""
        if not box.tokens:
            return Offer(
                session.key,
                session.tenant,
                0,
                exact=opening.mode.exact_match,
                source=opening.method,
                window=session.window,
                final=box.final,
                pacing=pacing,
            )
        tree = box.parents is not None
        return Offer(
            session.key,
            session.tenant,
            len(box),
            tree,
            opening.mode.exact_match,
            opening.method,
            tuple(box.reach) if opening.mode.exact_match else (),
            session.window,
            box.final,
            pacing,
            box.draft_ms / len(box),
            box.levels if tree else 0,
        )

    def _propose(self, ready: Sequence[RunningSession]) -> None:
        """Draft here for those that want it, and have no draft."""
        proposer = self._proposer
        if proposer is None:
            return
        asking = [own for own in ready if own.drafts_here and not len(own.mailbox) and own.window]
        asking = [own for own in asking if self._pacing.window(own.key, own.window)]
        if not asking:
            return
        try:
            drafts = proposer.propose([self._ask(own) for own in asking])
        except Exception:
            _log.exception("no drafts of the verifier's own in this step")
            drafts = [LocalDraft()] * len(asking)
        now = self._options.clock()
        for session, draft in zip(asking, drafts, strict=True):
            # Where nothing is drafted here, a drafter may have something yet.
            if len(draft.tree) or not session.drafted_for:
                session.mailbox.propose(draft, now)

    def _ask(self, session: RunningSession) -> LocalAsk:
        opening = session.opening
        number = (session.steps + 1) % MOST_DRAFTS_HERE
        room = min(session.room, session.depth)
        name = DraftName(0, opening.opening * MOST_DRAFTS_HERE + number)
        return LocalAsk(
            session.key,
            session.text,
            len(opening.prompt),
            room,
            session.window,
            session.told_rows,
            draft_key(opening.term, name),
        )

    def _held_until(self, session: RunningSession) -> float:
        return session.ready_since + session.hold_s

    def _has_room(self, session: RunningSession, busy: Collection[RunningSession]) -> bool:
        """Whether a session's next draft fits its K/V; others may have to give way for it."""
        if session.cache.reserve >= session.next_tokens:
            return True
        room = partial(self._caches.room, session, self._sessions.values(), busy)
        return self._at_its_cost(session, room) or False

    # --- prompts ------------------------------------------------------------------

    def _take_prompts(self, turns: Sequence[Turn]) -> list[Turn]:
        """Shares of prompts, beside these turns."""
        feeding = [own for own in self._sessions.values() if own.feeds]
        if not feeding:
            return []
        waiting = by_seniority(feeding)
        left = [session.prefill_left for session in waiting]
        room = self._prompt_room(waiting, turns)
        most = most_rows(self._engine.vocab_size)
        shares = within(waiting, share_prefill(left, room), most)
        return [
            self._prompt(session, share)
            for session, share in zip(waiting, shares, strict=True)
            if share
        ]

    def _prompt(self, session: RunningSession, share: int) -> Turn:
        """A share of a prompt; with the last one the first token comes, too."""
        idle = session.form is None and session.runs and not session.scoring
        fits = session.cache.reserve >= session.next_tokens
        last = share == session.prefill_left and idle and fits and not session.opening.score_from
        if not last or session.heavy:
            return prompt_turn(session, share)
        session.served_in = self._steps + 1
        return step_turn(session, NOTHING, share)

    def _prompt_room(self, feeding: Sequence[RunningSession], turns: Sequence[Turn]) -> int:
        """Prompt tokens for a step, beside these turns."""
        used = sum(turn.rows for turn in turns)
        came = min(own.since for own in feeding)
        every = self._sessions.values()
        decoding = sum(own.filled_at < came and own.ready for own in every)
        if not decoding:
            return self._pace.room(used)
        return self._pace.room(used, self._line, len(feeding) / decoding)

    # --- the forward --------------------------------------------------------------

    def _forward(self, turns: Sequence[Turn]) -> list[tuple[Turn, Tensor, Tensor | None]]:
        """All turns in one pass or, if that fails, each alone; without those that failed."""
        segments = [turn.segment for turn in turns]
        if any(turn.session.telling is not None for turn in turns):
            found = self._states.forward(segments)
            if found is not None:
                return list(zip(turns, *found, strict=True))
        try:
            logits = self._engine.forward(segments)
        except Exception as error:
            if out_of_memory(error) and self._caches.relieve():
                return self._forward(turns)
            if len(turns) == 1:
                self._fail(turns[0].session, error)
                return []
            return [result for turn in turns for result in self._forward([turn])]
        return [(turn, own, None) for turn, own in zip(turns, logits, strict=True)]

    def _feed(self, computed: Sequence[tuple[Turn, Tensor, Tensor | None]]) -> None:
        """What was computed, where it belongs; shares of prompts are in K/V."""
        for turn, logits, states in computed:
            session = turn.session
            own = states if session.telling is not None else None
            if turn.prompt:
                if own is not None:
                    self._tell_states(turn, own)
                self._fed(turn, logits)
            if turn.verifies:
                turn.tell(logits, own)

    def _fed(self, turn: Turn, logits: Tensor) -> None:
        """A share of a prompt is in K/V: tell what its rows say, where that was asked for."""
        session = turn.session
        if session.scoring and len(logits):
            rows = self._at_its_cost(session, partial(score_rows, session, logits))
            if rows is None:
                return
            link, handle = session.key
            scores = PromptScores(handle, session.opening.opening, session.scored, rows)
            self._emit(link, scores)
            session.scored += len(rows)
        self._note_prefilled(session)

    def _tell_states(self, turn: Turn, states: Tensor) -> None:
        session = turn.session
        link, handle = session.key
        for position, rows in self._states.of_prompt(session, turn.rows, turn.prompt, states):
            if session.drafts_here:
                self._anchor(session, position, rows)
            else:
                self._emit(link, TextStates(handle, session.opening.opening, position, rows))
            self._states.count(Fate.SENT, rows)

    def _anchor(self, session: RunningSession, position: int, states: bytes) -> None:
        """The states of a text that is drafted for here; without them drafts get worse, no more."""
        assert self._proposer is not None
        try:
            self._proposer.anchor(session.key, position, states)
        except Exception:
            _log.exception("states that are not drafted from")

    def _note_prefilled(self, session: RunningSession) -> None:
        shared = session.shared
        if session.prefill_left > 0 or shared is None or shared.waits:
            return
        now = self._options.clock()
        if not session.filled:
            session.ready_since = now
        session.fill(now)
        if session.opened or session.form is not None:
            return
        session.opened = True
        took = (now - session.since) * 1e3
        cached = min(shared.cached, session.most_cached)
        link, handle = session.key
        self._emit(link, SessionStarted(handle, session.opening.opening, cached, took))
        if session.opening.score_from:
            self._settle()
            self._caches.hold(session)
            self._close(session.key)

    # --- the outcome ----------------------------------------------------------------

    def _conclude(
        self, turns: Sequence[Turn], began: float, started: float, started_ns: int
    ) -> None:
        sessions, rows = len(turns), sum(turn.rows for turn in turns)
        judged = [turn for turn in turns if turn.session in self._in_step and turn.verifies]
        self._in_step = {}
        failed: list[tuple[RunningSession, Exception]] = []
        brought = self._grown(judged, started, failed)
        ended = self._options.clock()
        forms = sum(self._form_time.took(turn.session, ended) for turn in turns)
        took_ms = 1e3 * max(0.0, ended - started - forms)
        frame = StepFrame(self._steps, started_ns, took_ms, sessions, rows)
        stood = stood_out(self._sessions.values(), self._steps)
        self._send(frame, brought, stood)
        for session, error in failed:
            self._fail(session, error)
        self._measure(turns, took_ms, 1e3 * (started - began))
        if self._options.on_step is not None:
            entries = tuple(chain.from_iterable(turn.entries(started) for turn in turns))
            every = tuple(map(sum, zip(*stood.values(), strict=True)))
            dropped = self._dropped.since_last()
            self._options.on_step(StepRecord(started_ns, time.time_ns(), entries, every, dropped))

    def _grown(
        self, turns: Sequence[Turn], started: float, failed: list[tuple[RunningSession, Exception]]
    ) -> dict[int, list[tuple[RunningSession, StepRow]]]:
        """Let the texts grow; by link what is told of it. Whoever fails is told of behind it."""
        decisions = self._decide(turns)
        spoken = [
            said(turn, decided) if isinstance(decided, Decided) else ()
            for turn, decided in zip(turns, decisions, strict=True)
        ]
        states = self._state_rows(turns, decisions, spoken)
        now = self._options.clock()
        brought: defaultdict[int, list[tuple[RunningSession, StepRow]]] = defaultdict(list)
        for turn, decided, tokens in zip(turns, decisions, spoken, strict=True):
            session = turn.session
            if not isinstance(decided, Decided):
                failed.append((session, decided))
                continue
            row = step_row(turn, decided, tokens, started)
            try:
                row = self._with_rare_parts(turn, decided, row, states.get(session, b""))
                self._take_in(turn, decided, row, now)
            except Exception as error:
                failed.append((session, error))
            brought[session.key[0]].append((session, row))
        return brought

    def _decide(self, turns: Sequence[Turn]) -> Sequence[Decided | Exception]:
        """The decisions for all turns together or, if that fails, for each alone."""
        try:
            return self._spared(partial(decide_turns, turns, self._rounding))
        except Exception as error:
            if len(turns) == 1:
                return [error]
        return [decision for turn in turns for decision in self._decide([turn])]

    def _with_rare_parts(
        self, turn: Turn, decided: Decided, row: StepRow, states: bytes
    ) -> StepRow:
        session = turn.session
        session.told_rows = self._spared(partial(top_rows, turn))
        if session.opening.sampling.logprobs is not None:
            own = self._spared(partial(logprobs, turn, decided, row.tokens))
            row = row._replace(logprobs=own)
        if session.told_rows:
            row = row._replace(top_rows=session.told_rows)
        if states and session.drafts_here:
            self._anchor(session, turn.last, states)
        elif states:
            row = row._replace(states=states)
        return row

    def _state_rows(
        self,
        turns: Sequence[Turn],
        decisions: Sequence[Decided | Exception],
        spoken: Sequence[tuple[int, ...]],
    ) -> dict[RunningSession, bytes]:
        """The states before each token that was said, of all turns in one transfer."""
        told = (
            (turn.session, turn.states[state_rows(turn, decided, len(tokens))])
            for turn, decided, tokens in zip(turns, decisions, spoken, strict=True)
            if turn.states is not None and isinstance(decided, Decided)
        )
        rows = self._states.in_one(told)
        for own in rows.values():
            self._states.count(Fate.SENT, own)
        return rows

    def _take_in(self, turn: Turn, decided: Decided, row: StepRow, now: float) -> None:
        """The text grows by what was said, and K/V, form and counts follow it."""
        session, tokens = turn.session, row.tokens
        box = session.mailbox
        held, name = len(box), box.name
        if turn.tree.parents is not None:
            kept = [node + 1 for node in decided.path if node < len(turn.tree)]
            self._spared(partial(session.cache.keep_path, turn.last, (0, *kept)))
        session.grew(tokens, now)
        self._dropped.followed(held, name, row, box)
        session.steps += 1
        session.cache.rollback(len(session.text) - 1)
        if session.telling is not None:
            session.telling.told = len(session.text) - 1
        if session.offer is not None:
            whole = len(tokens) == len(turn.tree) + 1
            session.offer.ahead = None
            if turn.ahead is not None and whole:
                session.offer.ahead = Ahead(len(session.text), turn.ahead)
        if session.history is not None:
            session.history.extend(tokens)
        self._learn(turn, row)
        if session.matcher is not None and not session.matcher.extend(tokens):
            raise StructureError("a token was accepted that the form does not allow")

    def _learn(self, turn: Turn, row: StepRow) -> None:
        """Tell policy and counters what became of a draft."""
        session = turn.session
        if row.judged:
            tree = turn.tree.parents is not None
            reach = turn.taken.reach
            judged = Judged(session.key, len(row.judged), row.accepted, reach, row.path, tree)
            self._pacing.judged(judged)
        now = self._options.clock()
        self._pacing.advanced(session.key, len(row.tokens), now - session.advanced_at)
        session.advanced_at = now
        told, mode = self._options.on_choices, session.opening.mode
        if told is not None and mode.exact_match:
            told(mode.name.lower(), len(row.tokens), row.near_ties)

    def _send(
        self,
        frame: StepFrame,
        brought: dict[int, list[tuple[RunningSession, StepRow]]],
        stood: dict[int, tuple[int, ...]],
    ) -> None:
        """A frame a link, with how far its drafters are to be ahead where that has changed."""
        for link, every in brought.items():
            windows = self._windows([session for session, _ in every])
            bare = replace(frame, stood_out=stood.get(link, ()))
            self._emit(link, step_frame(bare, [row for _, row in every], windows))

    def _windows(self, sessions: Sequence[RunningSession]) -> Sequence[int]:
        """How far their drafters are to be ahead; none where they know."""
        if not any(own.drafted_for for own in sessions):
            return ()
        windows = [min(255, self._pacing.window(own.key, own.window)) for own in sessions]
        news = False
        for session, window in zip(sessions, windows, strict=True):
            news = news or session.told_window != window
            session.told_window = window
        return windows if news else ()

    def _measure(self, turns: Sequence[Turn], took_ms: float, before_ms: float) -> None:
        """Learn from a step; `before_ms`: what its drafts took that were made in it."""
        rows = sum(turn.rows for turn in turns)
        prompts = sum(turn.prompt for turn in turns)
        if prompts:
            self._pace.observe(rows, prompts, took_ms, self._line)
        else:
            self._pacing.stepped(len(turns), rows - len(turns), before_ms + took_ms)
        if took_ms and not (prompts and self._line.weight):
            self._line = self._line.add(rows, 1e-3 * took_ms)
        self._recent_ms.append(took_ms)

    # --- failures ---------------------------------------------------------------

    def _spared(self, act: Callable[[], T]) -> T:
        """What `act` gives; where memory runs out, once more without the texts that ended.

        Where it raises, `act` has changed nothing.
        """
        try:
            return act()
        except Exception as error:
            if not out_of_memory(error) or not self._caches.relieve():
                raise
        return act()

    def _at_its_cost(self, session: RunningSession, act: Callable[[], T]) -> T | None:
        """The same for one session; where that raises, the session fails and no other: None."""
        try:
            return self._spared(act)
        except Exception as error:
            self._fail(session, error)
            return None

    def _fail(self, session: RunningSession, error: Exception) -> None:
        """The session is gone, unless it is another one by now."""
        if self._sessions.get(session.key) is session:
            self._gone(session.key, session.opening.opening, error)

    def _gone(self, key: Key, opening: int, error: Exception) -> None:
        self._close(key, sound=False)
        reason, message = explain(error)
        self._emit(key[0], SessionGone(key[1], opening, reason, message))

    # --- what others see ----------------------------------------------------------

    def progress(self) -> Progress:
        """Steps so far and the load now; `queued_tokens` are tokens of prompts that wait."""
        return Progress(
            steps=self._steps,
            sessions=len(self._sessions),
            queued_tokens=sum([own.prefill_left for own in self._sessions.values()]),
            kv_tokens_used=self._engine.kv_tokens_used,
            kv_tokens_capacity=self._engine.kv_tokens_capacity,
            step_ms=sum(self._recent_ms) / max(1, len(self._recent_ms)),
            kv_tokens_spare=self._engine.kv_tokens_spare,
        )

    def describe(self) -> WorkerDescription:
        """What this worker is."""
        structured = self._options.structures is not None
        local = () if self._proposer is None else self._proposer.capabilities
        own = describe(self._engine, self._worker_id, self._options.version, structured)
        return replace(
            own,
            protocol_min=PROTOCOL,
            protocol_max=PROTOCOL,
            capabilities=(*own.capabilities, *local),
        )


def _trimmed(turn: Turn) -> bool:
    """Leave K/V to the text alone, of a session that ends before its draft was judged."""
    session = turn.session
    try:
        if turn.tree.parents is not None:
            session.cache.keep_path(turn.last, (0,))
        session.cache.rollback(min(session.cache.length, len(session.text) - 1))
    except Exception:
        _log.exception("a text that ended is not kept")
        return False
    return True
