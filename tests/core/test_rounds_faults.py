"""Deliberate faults in the rules: each must break a property, or the properties are blind."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.core import attachment, drafting, rounds, sending, verdicts
from orchestrator.core.drafts import Piece
from orchestrator.core.events import Emit, NeedWorker, SendVerify
from orchestrator.core.turn import Turn
from services.contract.types import EMPTY_HASH, DraftTree, Role, VerifyMode, extend_hash
from tests.core.world import Faults, World

Patch = Callable[[pytest.MonkeyPatch], None]


def _keep_the_tail_after_a_rejection(patch: pytest.MonkeyPatch) -> None:
    def bump(self: Turn) -> None:
        self.set(epoch=self.state.epoch + 1, resync=False)

    patch.setattr(Turn, "bump_epoch", bump)


def _forget_the_epoch_after_a_rejection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Turn, "bump_epoch", lambda self: self.set(tail=(), resync=False))


def _believe_every_hash(patch: pytest.MonkeyPatch) -> None:
    original = drafting._absorb

    def absorb(turn, draft, known_all):
        text = turn.state.committed + turn.state.speculated
        prefix = extend_hash(EMPTY_HASH, text[: draft.first_position])
        original(turn, draft._replace(prefix_hash=prefix), known_all)

    patch.setattr(drafting, "_absorb", absorb)


def _start_anew_after_every_round(patch: pytest.MonkeyPatch) -> None:
    def carry(turn, _block, _verdict):
        turn.doom()
        turn.bump_epoch()

    patch.setattr(verdicts, "_carry_tail_over", carry)


def _keep_the_bonus_in_the_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdicts, "after_bonus", lambda tail, bonus: tail)


def _drop_one_token_too_many_with_the_bonus(patch: pytest.MonkeyPatch) -> None:
    def after(tail, bonus):
        return tail[2:] if tail[0].tree.token_ids[0] == bonus else None

    patch.setattr(verdicts, "after_bonus", after)


def _never_replace_a_lost_verifier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Turn, "need_workers", lambda self: None)
    begin = rounds._begin

    def first(turn):
        begin(turn)
        turn.do(NeedWorker(Role.VERIFIER))
        turn.do(NeedWorker(Role.DRAFTER))

    patch.setattr(rounds, "_begin", first)


def _wait_for_the_drafter_for_ever(patch: pytest.MonkeyPatch) -> None:
    original = sending._view
    patch.setattr(
        sending, "_view", lambda state, now: original(state, now)._replace(drafting=True, now=0.0)
    )


def _emit_before_the_store_answers(patch: pytest.MonkeyPatch) -> None:
    original = verdicts._extend_text

    def extend(turn, commit):
        turn.do(Emit(commit))
        original(turn, commit)

    patch.setattr(verdicts, "_extend_text", extend)


def _take_a_verdict_twice(patch: pytest.MonkeyPatch) -> None:
    def consistent(turn, block, verdict):
        return True

    original = verdicts.on_verdict

    def again(turn, event):
        fine = original(turn, event)
        block = verdicts.Block(event.verdict.round, 0, 0, Piece(DraftTree()), turn.now)
        if fine and turn.state.phase.value == "running":
            verdicts._absorb(turn, block, event.verdict)
        return fine

    patch.setattr(verdicts, "_consistent", consistent)
    patch.setattr(rounds, "on_verdict", again)


def _forget_what_is_in_flight_when_numbering_a_block(patch: pytest.MonkeyPatch) -> None:
    original = sending._send

    def send(turn, *args):
        original(turn, *args)
        last = turn.actions[-1]
        assert isinstance(last, SendVerify)
        wrong = last.message._replace(base_len=len(turn.state.committed))
        turn.actions[-1] = replace(last, message=wrong)

    patch.setattr(sending, "_send", send)


def _open_a_new_verifier_from_the_start(patch: pytest.MonkeyPatch) -> None:
    original = attachment._open_verify
    patch.setattr(attachment, "_open_verify", lambda state: replace(original(state), committed=()))


def _ask_for_a_bonus_while_a_tail_remains(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sending, "_wants_bonus", lambda state, piece, rest: True)


def _never_ask_for_a_bonus_by_rejection(patch: pytest.MonkeyPatch) -> None:
    def wants(state, piece, _rest):
        return state.config.mode.exact_match or not piece.tree.is_chain or not len(piece.tree)

    patch.setattr(sending, "_wants_bonus", wants)


def _forget_that_a_commit_sets_the_drafter_going(patch: pytest.MonkeyPatch) -> None:
    original = sending._wants_bonus

    def wants(state, piece, rest):
        alone = tuple(block._replace(doomed=True) for block in state.in_flight)
        return original(replace(state, in_flight=alone), piece, rest)

    patch.setattr(sending, "_wants_bonus", wants)


def _keep_the_tail_after_a_rejection_by_sampling(patch: pytest.MonkeyPatch) -> None:
    original = verdicts._carry_tail_over

    def carry(turn, block, verdict):
        tail = turn.state.tail
        original(turn, block, verdict)
        if not turn.state.config.mode.exact_match and not verdict.all_accepted:
            turn.set(tail=tail)

    patch.setattr(verdicts, "_carry_tail_over", carry)


def _join_drafts_that_lack_a_row_with_those_that_have_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(drafting, "with_its_rows", lambda tree: tree)


def _trust_that_a_new_drafter_drew_what_its_predecessor_did(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verdicts, "_drafter_may_differ", lambda state, block: False)


def _stay_in_the_epoch_after_a_bonus_that_nothing_confirms(patch: pytest.MonkeyPatch) -> None:
    original = verdicts._confirmed
    patch.setattr(
        verdicts, "_confirmed", lambda turn, bonus: not turn.state.tail or original(turn, bonus)
    )


FAULTS: list[Patch] = [
    _ask_for_a_bonus_while_a_tail_remains,
    _never_ask_for_a_bonus_by_rejection,
    _forget_that_a_commit_sets_the_drafter_going,
    _keep_the_tail_after_a_rejection_by_sampling,
    _join_drafts_that_lack_a_row_with_those_that_have_one,
    _trust_that_a_new_drafter_drew_what_its_predecessor_did,
    _stay_in_the_epoch_after_a_bonus_that_nothing_confirms,
    _keep_the_tail_after_a_rejection,
    _forget_the_epoch_after_a_rejection,
    _believe_every_hash,
    _start_anew_after_every_round,
    _keep_the_bonus_in_the_tail,
    _drop_one_token_too_many_with_the_bonus,
    _never_replace_a_lost_verifier,
    _wait_for_the_drafter_for_ever,
    _emit_before_the_store_answers,
    _take_a_verdict_twice,
    _forget_what_is_in_flight_when_numbering_a_block,
    _open_a_new_verifier_from_the_start,
]


def _worlds() -> list[World]:
    unkind = Faults(0.6, duplicates=0.2, lose_drafter=0.01, lose_verifier=0.01)
    silent = Faults(drafter_speed=0.0)
    restless = Faults(1.0, lose_verifier=0.02)
    kinds = [Faults(1.0), Faults(0.7), unkind, silent, restless]
    modes = [VerifyMode.GREEDY, VerifyMode.BLOCK]
    choices = itertools.product(range(4), kinds, ["eager", "fixed"], modes, [1, 2])
    usual = [
        World(seed, faults, pacing=pacing, mode=mode, max_in_flight=flight)
        for seed, faults, pacing, mode, flight in choices
    ]
    narrow = [
        World(seed, Faults(1.0), window=2, mode=VerifyMode.STANDARD, max_in_flight=2)
        for seed in range(4)
    ]
    fleeting = [
        World(seed, Faults(0.9, lose_drafter=0.05, verifier_speed=0.3), mode=VerifyMode.BLOCK)
        for seed in range(8)
    ]
    trees = [
        World(seed, Faults(0.8), mode=mode, num_candidates=3) for mode in modes for seed in (1, 2)
    ]
    return usual + narrow + fleeting + trees


def _properties_hold(world: World) -> bool:
    """Whether a run keeps all five; a perfect drafter must not be rolled back, either."""
    try:
        world.run(steps=3000)
    except (AssertionError, IndexError):
        return False
    perfect = world.faults == Faults(1.0)
    steady = world.state.epoch == 1 or not world.state.config.mode.exact_match
    unwasted = not perfect or (not world.wasted() and steady)
    return world.finished and world.lawful() and unwasted


def test_the_properties_hold_without_a_fault() -> None:
    assert all(_properties_hold(world) for world in _worlds())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_the_properties_catch(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert not all(_properties_hold(world) for world in _worlds())
