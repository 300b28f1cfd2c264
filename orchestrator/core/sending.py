"""A block leaves for the verifier.

1. A verify leaves when a verifier has the session open, fewer than
   `max_in_flight` live blocks are under way, and pacing says so. A chained
   block follows a chain of its own epoch and holds at least one token; in
   `STANDARD` and `BLOCK` it never follows a block that asks for a bonus.
2. A plain block goes with the opening, if the session's first round may be plain. The verifier
   takes it in the step that ends the prefill, so that the first token costs no round trip
   and no step of its own. Its times are not those of other rounds.
3. Behind a plain block goes the next one, if that is plain whatever the verdict: no drafter is
   wanted, or it rests. So the verifier never waits for it. Only one block is ahead.
4. Where the drafter is in the verifier's process, the next block goes behind any other, with an
   allowance: when its turn comes it takes as much of the tree drafted by then as pays. So
   rounds with a draft wait for no round trip, either. This holds only where tokens follow
   from the text and the noise alone.
5. Whether a block asks for a bonus is fixed when it leaves, by counts and flags
   alone: `_wants_bonus`.
"""

from __future__ import annotations

from orchestrator.core.drafts import Piece, Tail, take
from orchestrator.core.events import SendVerify
from orchestrator.core.pacing import Flight, View, Wait, allowance, resting
from orchestrator.core.state import Block, State
from orchestrator.core.turn import Turn
from services.contract.types import Allowance, Verify


def send_at_opening(turn: Turn) -> None:
    """Send the first block to the verifier that is being told to open the session."""
    config = turn.state.config
    if config.plain_ahead and len(turn.state.unpersisted) < config.limits.max_unpersisted:
        _send(turn, 0, 0.0, opening=True)


def send_what_pays(turn: Turn) -> None:
    """Send blocks while one may leave and pacing says so; remember when to ask again."""
    until = _send_until_it_waits(turn)
    if until != turn.state.wait_until:
        turn.set(wait_until=until)
    if _may_follow(turn.state):
        allowance = _allowance(turn.state)
        if allowance is not None or _plain_may_follow(turn.state):
            _send(turn, 0, 0.0, behind=True, allowance=allowance)


def _send_until_it_waits(turn: Turn) -> float | None:
    waited = turn.state.wait_until is not None
    while _may_send(turn.state):
        state = turn.state
        decision = state.policy.decide(_view(state, turn.now))
        if isinstance(decision, Wait):
            return decision.until
        if state.live and (decision.count == 0 or not state.tail):
            return None
        stood_idle = waited and not state.live
        _send(turn, decision.count, 1e3 * (turn.now - state.idle_since) if stood_idle else 0.0)
        waited = False
    return None


def _may_send(state: State) -> bool:
    if not _opened(state):
        return False
    if len(state.unpersisted) >= state.config.limits.max_unpersisted:
        return False
    return not state.live or _may_chain(state)


def _opened(state: State) -> bool:
    return state.verifier is not None and state.verifier.opened


def _may_follow(state: State) -> bool:
    """Whether a block may leave behind the one under way, whatever its verdict."""
    config, live = state.config, state.live
    if state.tail or len(live) != 1 or len(state.in_flight) != 1:
        return False
    if not config.plain_ahead or not _opened(state):
        return False
    if len(state.unpersisted) + 1 >= config.limits.max_unpersisted:
        return False
    # A later epoch would have the verifier discard the first one.
    first = live[0]
    may = first.takes or first.epoch == state.epoch
    return may and len(state.committed) + 1 < config.sampling.max_tokens


def _plain_may_follow(state: State) -> bool:
    """Whether a plain block under way is followed by another one."""
    first = state.live[0]
    return not (state.refuses_behind or first.takes or first.piece.tree) and _stays_plain(state)


def _allowance(state: State) -> Allowance | None:
    """How much of the tree drafted beside the verifier the next block may take."""
    drafter, verifier = state.drafter, state.verifier
    if drafter is None or verifier is None or not drafter.opened or state.resync:
        return None
    if drafter.beside != verifier.worker or not state.config.mode.exact_match:
        return None
    return allowance(state.policy, state.capped(state.config.largest_block))


def _stays_plain(state: State) -> bool:
    """Whether the round after the one under way will have no draft.

    With a drafter only where tokens follow from the text and the noise alone: elsewhere its
    epoch counts the places that were drawn.
    """
    if not state.wants_drafter and state.drafter is None:
        return True
    return state.config.mode.exact_match and (state.cap == 0 or resting(state.policy) > 1)


def _may_chain(state: State) -> bool:
    if len(state.live) >= state.config.limits.max_in_flight or not state.tail:
        return False
    return all(_chainable(state, block) for block in state.live) and _room(state) > 0


def _chainable(state: State, block: Block) -> bool:
    open_end = state.config.mode.exact_match or not block.want_bonus
    return open_end and not block.behind and block.piece.is_chain and block.epoch == state.epoch


def _room(state: State) -> int:
    """Draft tokens that still fit before the length limit, with one token after them."""
    done = len(state.committed) + len(state.flying)
    return max(0, state.config.sampling.max_tokens - done - 1)


def _view(state: State, now: float) -> View:
    drafter = state.drafter
    drafting = drafter is not None and drafter.opened and not state.drafter_final
    return View(
        now,
        state.idle_since,
        state.drafted,
        drafting and state.credit > 0,
        state.capped(_room(state)),
        tuple([Flight(block.sent_at, len(block.piece.tree)) for block in state.live]),
        state.config.mode.exact_match,
        state.tail[0].reach if state.tail else (),
    )


def _wants_bonus(state: State, piece: Piece, rest: Tail) -> bool:
    """Whether this block, if it is fully accepted, asks for a bonus token.

    Where drafts are matched exactly, always: that token comes next whatever was
    drafted. In `STANDARD` and `BLOCK` it is a fresh draw, equal to a drafted
    token at its place by chance only, so the drafts beyond would be lost. There
    a block asks for it if nothing is drafted beyond, or can be: after a tree; at
    the length limit; and where no tail is left and the drafter rests until this
    verdict.

    Both ways keep the output distribution. Once every token of a block is accepted,
    the text has the target's distribution. The next token keeps it, whether it is
    drawn from the target at once or by a later block that starts there with nothing
    carried over (Leviathan et al. 2023, appendix A.1; Sun et al. 2024, where p_0 = 1).
    Only the choice must not depend on unsent tokens: it reads lengths and flags.
    """
    if state.config.mode.exact_match or not piece.tree.token_ids or not piece.tree.is_chain:
        return True
    if len(piece.tree) >= _room(state):
        return True
    return not rest and not state.live and _drafter_rests(state, len(piece.tree))


def _drafter_rests(state: State, sent: int) -> bool:
    """Whether nothing is drafted beyond `sent` tokens until a verdict or a credit comes."""
    return state.drafter is None or state.drafter_final or sent >= state.credit


def _send(
    turn: Turn,
    count: int,
    waited_ms: float,
    *,
    opening: bool = False,
    behind: bool = False,
    allowance: Allowance | None = None,
) -> None:
    state = turn.state
    assert state.verifier is not None
    piece, rest = take(state.tail, count)
    live = state.live
    verify = Verify(
        state.config.session,
        state.epoch,
        state.next_round,
        len(state.committed) + len(state.flying) + behind,
        piece.tree,
        extends_round=live[-1].round if live else 0,
        want_bonus=_wants_bonus(state, piece, rest),
        allowance=allowance,
    )
    takes = allowance is not None
    drafts = takes or piece.tree.token_ids
    drafter = state.drafter.worker if state.drafter and drafts else ""
    block = Block(
        verify.round,
        verify.epoch,
        verify.base_len,
        piece,
        turn.now,
        drafter,
        verify.want_bonus,
        chained=bool(live),
        waited_ms=waited_ms,
        opening=opening,
        behind=behind,
        takes=takes,
    )
    turn.set(tail=rest, in_flight=(*state.in_flight, block), next_round=state.next_round + 1)
    turn.do(SendVerify(state.verifier.worker, verify, piece.draft_ms))
