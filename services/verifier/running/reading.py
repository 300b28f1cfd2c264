"""Texts on their way to their first step: read, copied, followed to their forms, brought back."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from services.contract.states import Fate
from services.contract.worker_messages import PromptScores, SessionStarted, TextStates
from services.grammar.spending import SLICE
from services.verifier.forms import FormTime
from services.verifier.options import VerifierOptions
from services.verifier.refusals import open_matcher
from services.verifier.running.own_drafts import OwnDrafts
from services.verifier.running.session import RunningSession
from services.verifier.running.sessions import Emit, Sessions
from services.verifier.running.turns import Turn
from services.verifier.scores import score_rows

FOLLOWING = 5e-3
"""Seconds before a step for texts that are followed to their forms."""


class Reading:
    """Lets sessions start."""

    def __init__(
        self,
        sessions: Sessions,
        own_drafts: OwnDrafts,
        emit: Emit,
        form_time: FormTime,
        options: VerifierOptions,
    ) -> None:
        self._sessions, self._own_drafts, self._emit = sessions, own_drafts, emit
        self._form_time = form_time
        self._structures, self._clock = options.structures, options.clock

    def begin(self, session: RunningSession) -> None:
        """A session has been opened."""
        # A text that is to be followed first waits for a step.
        (self._note_read if session.opening.output else self._take_form)(session)

    def prepare(self) -> None:
        """Go on with what came meanwhile: forms, room for preempted sessions, shared beginnings."""
        until = self._clock() + FOLLOWING
        for follower in self.followers():
            self._take_form(follower)
            if self._clock() > until:
                break
        self._bring_back()
        self._settle()

    def followers(self) -> list[RunningSession]:
        """Whose texts may be followed to their forms now; whose was least comes first."""
        every = self._sessions.every.values()
        found = [own for own in every if own.form is not None and own.form.done]
        if not found:
            return found
        rest = self._form_time.rest(every, self._clock()) > 0
        found = [own for own in found if not (rest and own.heavy)]
        return sorted(found, key=lambda own: own.matcher.spending.seconds if own.matcher else 0.0)

    def fed(self, turn: Turn, logits: Tensor, states: Tensor | None) -> None:
        """A share of a prompt is in K/V: tell what its rows say, where that was asked for."""
        session = turn.session
        if states is not None:
            self._tell_states(turn, states)
        if session.scoring and len(logits) and not self._tell_scores(session, logits):
            return
        self._note_read(session)

    # --- what is told -----------------------------------------------------------------

    def _tell_scores(self, session: RunningSession, logits: Tensor) -> bool:
        """Whether the rows told of the tokens behind them; else the session is gone."""
        rows = self._sessions.at_its_cost(session, partial(score_rows, session, logits))
        if rows is None:
            return False
        link, handle = session.key
        self._emit(link, PromptScores(handle, session.opening.opening, session.scored, rows))
        session.scored += len(rows)
        return True

    def _tell_states(self, turn: Turn, states: Tensor) -> None:
        session, watch = turn.session, self._sessions.states
        link, handle = session.key
        for position, rows in watch.of_prompt(session, turn.rows, turn.prompt, states):
            if session.drafts_here:
                self._own_drafts.anchor(session, position, rows)
            else:
                self._emit(link, TextStates(handle, session.opening.opening, position, rows))
            watch.count(Fate.SENT, rows)

    # --- how far they are -------------------------------------------------------------

    def _take_form(self, session: RunningSession) -> None:
        """Go on with the form, where that is there; it may turn out to be none."""
        form, structures = session.form, self._structures
        if form is not None and form.done and structures is not None:
            try:
                if session.matcher is None:
                    session.matcher = open_matcher(session.opening, form, structures)
                followed = session.follow_text(SLICE)
            except Exception as error:
                self._sessions.fail(session, error)
                return
            self._form_time.took(session, self._clock())
            if not followed:
                return
            session.form = None
        self._note_read(session)

    def _bring_back(self) -> None:
        """Give preempted sessions K/V again, as far as there is room."""
        caches, every = self._sessions.caches, self._sessions.every
        while any(own.preempted for own in every.values()):
            session = caches.to_bring_back(every.values())
            if session is None:
                break
            self._sessions.at_its_cost(session, partial(caches.open, session))
            if not session.preempted:
                self._note_read(session)

    def _settle(self) -> None:
        """Copy what other sessions were fed first, where that is there."""
        for session in [own for own in self._sessions.every.values() if not own.filled]:
            shared = session.shared
            if shared is None or not shared.waits:
                continue
            if self._sessions.at_its_cost(session, shared.settle):
                session.forget_unscored()
                self._note_read(session)

    def _note_read(self, session: RunningSession) -> None:
        """Let the session take part in steps, and say that it has started, once all is there."""
        shared = session.shared
        if session.prefill_left > 0 or shared is None or shared.waits:
            return
        now = self._clock()
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
            self._sessions.caches.hold(session)
            self._sessions.close(session.key)
