"""Drafts in mailboxes, and the policy: what is offered, what of it is verified, what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.contract.frames import DraftRow, StepRow
from services.contract.types import Proposal
from services.scheduling.offers import Judged, Offer, Pacing
from services.verifier.refusals import Limits, Refusal, check_tree
from services.verifier.running.dropped import DroppedDrafts
from services.verifier.running.session import Key, RunningSession
from services.verifier.running.turns import Turn


class Drafting:
    """What the policy is asked before a step, and told behind it."""

    def __init__(self, pacing: Pacing, limits: Limits, clock: Callable[[], float]) -> None:
        self._pacing, self._limits, self._clock = pacing, limits, clock
        self.dropped = DroppedDrafts()

    # --- what drafters send -----------------------------------------------------------

    def take(self, session: RunningSession, draft: DraftRow, arrived: float) -> None:
        """Into the mailbox; what no correct drafter sends is nothing."""
        if self._sound(draft):
            self.dropped.put(session.mailbox, draft, session.output, arrived)
            self._pacing.drafted(session.key, len(draft.tree), draft.draft_ms, draft.final)

    def _sound(self, draft: DraftRow) -> bool:
        """Whether a draft is a tree as it should be, with a law for each place drawn at."""
        tree = draft.tree
        if tree.parents is None:
            if max(tree.token_ids, default=0) >= self._limits.vocab_size:
                return False
        else:
            try:
                check_tree(tree, self._limits)
            except Refusal:
                return False
        if tree.proposal is not Proposal.SAMPLED:
            return tree.q is None
        return tree.q is None or len(tree.q) == len(set(tree.every_parent))

    # --- before a step ----------------------------------------------------------------

    def allot(self, ready: Sequence[RunningSession]) -> dict[Key, int]:
        """How much of its draft each of these may have verified; who is to be held is marked."""
        now = self._clock()
        allotted = self._pacing.allot([_offer(own) for own in ready])
        counts = {}
        for session, own in zip(ready, allotted, strict=True):
            counts[session.key] = min(own.tokens, session.window)
            session.held = own.hold_s > 0 and now < session.ready_since + own.hold_s
            session.hold_s = own.hold_s
            if session.held and session.held_since is None:
                session.held_since = now
        return counts

    # --- behind it --------------------------------------------------------------------

    def learn(self, turn: Turn, row: StepRow) -> None:
        """What became of a session's draft, and how long its step took."""
        session, now = turn.session, self._clock()
        if row.judged:
            self._pacing.judged(
                Judged(
                    session.key,
                    len(row.judged),
                    row.accepted,
                    turn.taken.reach,
                    row.path,
                    turn.tree.parents is not None,
                )
            )
        self._pacing.advanced(session.key, len(row.tokens), now - session.advanced_at)
        session.advanced_at = now

    def stepped(self, sessions: int, extra: int, ms: float) -> None:
        """A step without prompts, of so many sessions and draft tokens, took `ms`."""
        self._pacing.stepped(sessions, extra, ms)

    def windows(self, sessions: Sequence[RunningSession]) -> Sequence[int]:
        """How far whoever drafts for them is to be ahead; none where that is known."""
        if not any(own.drafted_for or own.drafts_here for own in sessions):
            return ()
        windows = [min(255, self._pacing.window(own.key, own.window)) for own in sessions]
        news = False
        for session, window in zip(sessions, windows, strict=True):
            news = news or session.told_window != window
            session.told_window = window
        return windows if news else ()

    def forget(self, session: RunningSession) -> None:
        """The session is gone."""
        self.dropped.closed(session.mailbox)
        self._pacing.forget(session.key)


def _offer(session: RunningSession) -> Offer:
    box, opening = session.mailbox, session.opening
    drafted_for = session.drafted_for or session.drafts_here
    exact, tree = opening.mode.exact_match, box.parents is not None
    return Offer(
        session.key,
        session.tenant,
        len(box),
        tree=tree,
        exact=exact,
        source=opening.method,
        reach=tuple(box.reach) if exact else (),
        window=session.window,
        final=_final(session),
        # Where nobody drafts there is nothing to pace, and to wait for.
        pacing=opening.pacing if drafted_for else "",
        draft_ms=box.draft_ms / max(1, len(box)),
        depth=box.levels if tree else 0,
        drafted_for=drafted_for,
    )


def _final(session: RunningSession) -> bool:
    """Whether nothing follows its draft before its text grows."""
    box = session.mailbox
    if box.final or not session.drafted_for:
        return True
    if not box.tokens or box.parents is not None:
        return False
    told = session.told_window
    return len(box) >= session.room or (told is not None and len(box) >= told) or _stops(session)


def _stops(session: RunningSession) -> bool:
    """Whether no drafter goes on behind the last token of its chain."""
    opening, last = session.opening, session.mailbox.tokens[-1]
    if not opening.mode.exact_match or last not in session.stops:
        return False
    return session.length + len(session.mailbox) > opening.sampling.min_tokens
