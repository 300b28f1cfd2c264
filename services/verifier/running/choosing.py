"""Who takes part in a step, with how much of a draft, and with what share of a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import count

from services.scheduling.turns import exchange
from services.verifier.fed_text import by_seniority
from services.verifier.forms import FormTime, crowded
from services.verifier.options import VerifierOptions
from services.verifier.running.drafting import Drafting
from services.verifier.running.mailbox import NOTHING
from services.verifier.running.own_drafts import OwnDrafts
from services.verifier.running.pace import StepPace
from services.verifier.running.session import Key, RunningSession
from services.verifier.running.sessions import Sessions
from services.verifier.running.turns import Turn, prompt_turn, step_turn
from services.verifier.scheduling import share_prefill
from services.verifier.scores import most_rows, within

MOST_SAID = 254
"""Draft tokens that one step may accept: a column's numbers, with one token more, end at 255."""


class Choosing:
    """Chooses the turns of a step."""

    def __init__(
        self,
        sessions: Sessions,
        drafting: Drafting,
        own_drafts: OwnDrafts,
        form_time: FormTime,
        pace: StepPace,
        vocab_size: int,
        options: VerifierOptions,
    ) -> None:
        self._sessions, self._drafting, self._own_drafts = sessions, drafting, own_drafts
        self._form_time, self._pace, self._options = form_time, pace, options
        self._most_scored = most_rows(vocab_size)
        self._served = count(1)

    def turns(self, step: int) -> list[Turn]:
        """Drafts first, then shares of prompts; `step`: the number of the step."""
        turns = self._of_drafts(step)
        return turns + self._of_prompts(turns, step)

    # --- drafts -----------------------------------------------------------------------

    def _of_drafts(self, step: int) -> list[Turn]:
        """Sessions that can be in the step, with what they have verified of their drafts.

        Where not all of them fit, whoever was served longest ago comes first; within a tenant's
        turns priorities decide.
        """
        every = self._sessions.every.values()
        ready = [own for own in every if own.ready and not own.preempted]
        if not ready:
            return []
        self._own_drafts.propose(ready)
        counts = self._drafting.allot(ready)
        fit = sum(counts.values()) + len(ready) <= self._options.max_step_tokens
        # Of heavy formats a step holds one.
        if not fit or any(own.heavy for own in ready):
            ready.sort(key=lambda own: own.served)
            ready = exchange(ready, lambda own: own.tenant_of_turns, "served")
        return self._as_fit(ready, counts, step)

    def _as_fit(
        self, ready: Sequence[RunningSession], counts: dict[Key, int], step: int
    ) -> list[Turn]:
        every, now = self._sessions.every.values(), self._options.clock()
        forms = any(own.matcher is not None for own in ready)
        rest = forms and self._form_time.rest(every, now) > 0
        alone = not forms or not crowded(every)
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
            # Each row of a heavy one wants a mask, and one is made beside the forward.
            costly = session.heavy and not alone
            turns.append(_with_draft(session, 0 if costly else counts[session.key]))
            busy.add(session)
            session.served_in, session.served = step, next(self._served)
            used += 1 + len(turns[-1].tree)
            rest = rest or costly
        return turns

    def _has_room(self, session: RunningSession, busy: Collection[RunningSession]) -> bool:
        """Whether a session's next draft fits its K/V; others may have to give way for it."""
        if session.cache.reserve >= session.next_tokens:
            return True
        every = self._sessions.every.values()
        room = partial(self._sessions.caches.room, session, every, busy)
        return self._sessions.at_its_cost(session, room) or False

    # --- prompts ----------------------------------------------------------------------

    def _of_prompts(self, turns: Sequence[Turn], step: int) -> list[Turn]:
        """Shares of prompts, beside these turns."""
        every = self._sessions.every.values()
        waiting = by_seniority([own for own in every if own.feeds])
        if not waiting:
            return []
        left = [session.prefill_left for session in waiting]
        shares = share_prefill(left, self._pace.prompt_room(waiting, turns, every))
        return [
            self._of_prompt(session, share, step)
            for session, share in zip(
                waiting, within(waiting, shares, self._most_scored), strict=True
            )
            if share
        ]

    def _of_prompt(self, session: RunningSession, share: int, step: int) -> Turn:
        """A share of a prompt; with the last one the first token comes, too."""
        idle = session.form is None and session.runs and not session.scoring
        fits = session.cache.reserve >= session.next_tokens
        last = share == session.prefill_left and idle and fits and not session.opening.score_from
        if not last or session.heavy:
            return prompt_turn(session, share)
        session.served_in, session.served = step, next(self._served)
        return step_turn(session, NOTHING, share)


def _with_draft(session: RunningSession, count: int) -> Turn:
    """A turn with so many tokens of the session's draft."""
    if not count:
        return step_turn(session, NOTHING)
    most = min(session.depth, session.room, MOST_SAID)
    return step_turn(session, session.mailbox.first_tokens(count, most))
