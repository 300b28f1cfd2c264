"""Deliberate faults in the rules: each must break a property, or the properties are blind."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.steering import credit, machine, openings, storing, taking
from orchestrator.steering.events import Emit, Grant
from orchestrator.steering.state import Turn
from services.contract.types import VerifyMode
from tests.steering.world import Faults, World

Patch = Callable[[pytest.MonkeyPatch], None]


def _never_replace_a_lost_verifier(patch: pytest.MonkeyPatch) -> None:
    original = Turn.need_workers

    def once(self: Turn) -> None:
        if not self.verifiers.openings or self.verifier is not None:
            original(self)

    patch.setattr(Turn, "need_workers", once)


def _emit_before_the_store_answers(patch: pytest.MonkeyPatch) -> None:
    original = taking.add

    def add(turn, commit):
        turn.actions.append(Emit(commit))
        original(turn, commit)

    patch.setattr(taking, "add", add)


def _take_a_step_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(taking, "_following", lambda turn, verifier, taken: (list(taken), ""))


def _take_steps_of_any_opening(patch: pytest.MonkeyPatch) -> None:
    original = taking._following

    def following(turn, verifier, taken):
        own = tuple(t._replace(row=t.row._replace(opening=verifier.opening)) for t in taken)
        return original(turn, verifier, own)

    patch.setattr(taking, "_following", following)


def _overlook_a_step_that_is_missing(patch: pytest.MonkeyPatch) -> None:
    original = taking._following

    def following(turn, verifier, taken):
        end, own = len(turn.committed), []
        for one in taken:
            position = max(end, one.row.position) and end
            own.append(one._replace(row=one.row._replace(position=position)))
            end += len(one.row.tokens)
        return original(turn, verifier, tuple(own))

    patch.setattr(taking, "_following", following)


def _open_a_verifier_from_what_is_stored(patch: pytest.MonkeyPatch) -> None:
    original = openings._start_verify

    def start(turn, verifier):
        message = original(turn, verifier)
        return replace(message, output=message.output[: turn.stored])

    patch.setattr(openings, "_start_verify", start)


def _open_a_drafter_from_what_is_stored(patch: pytest.MonkeyPatch) -> None:
    original = openings._start_draft

    def start(turn, drafter):
        message = original(turn, drafter)
        return replace(message, output=message.output[: turn.stored])

    patch.setattr(openings, "_start_draft", start)


def _open_a_verifier_again_under_the_same_number(patch: pytest.MonkeyPatch) -> None:
    original = openings._open_verifier

    def again(turn, event, due):
        turn.verifiers = turn.verifiers._replace(openings=0)
        original(turn, event, due)

    patch.setattr(openings, "_open_verifier", again)


def _forget_what_was_received_when_a_verifier_is_lost(patch: pytest.MonkeyPatch) -> None:
    original = openings.lose_verifier

    def lose(turn, reason):
        turn.committed = turn.committed[: turn.stored]
        turn.pending = turn.storing = None
        original(turn, reason)

    patch.setattr(openings, "lose_verifier", lose)


def _emit_a_commit_again(patch: pytest.MonkeyPatch) -> None:
    original = storing.on_persisted

    def twice(turn, event):
        original(turn, event)
        turn.actions += [one for one in turn.actions if isinstance(one, Emit)]

    patch.setattr(machine, "on_persisted", twice)


def _never_grant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storing, "grant", lambda turn: None)


def _grant_without_the_store(patch: pytest.MonkeyPatch) -> None:
    original = taking.on_steps

    def on_steps(turn, event):
        original(turn, event)
        turn.actions.append(Grant(len(turn.committed) + credit.MOST))

    patch.setattr(machine, "on_steps", on_steps)


def _store_the_next_commit_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(taking, "add", lambda turn, commit: _add_and_store(turn, commit))


def _add_and_store(turn: Turn, commit) -> None:
    storing.add(turn, commit)
    storing.store(turn, behind=True)


def _join_commits_the_wrong_way_round(patch: pytest.MonkeyPatch) -> None:
    original = storing._joined
    patch.setattr(
        storing,
        "_joined",
        lambda first, second: original(second, first)._replace(
            base_len=first.base_len, ending=second.ending
        ),
    )


def _lose_a_round_where_commits_are_joined(patch: pytest.MonkeyPatch) -> None:
    original = storing._joined
    patch.setattr(
        storing,
        "_joined",
        lambda first, second: original(first, second)._replace(records=second.records),
    )


def _forget_what_waits_when_the_store_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storing, "store", lambda turn, *, behind=False: _store_only_new(turn))


def _store_only_new(turn: Turn) -> None:
    if turn.pending is not None and turn.storing is None and len(turn.pending.records) == 1:
        turn.storing, turn.pending = turn.pending, None
        turn.actions.append(storing.Persist(turn.storing))


FAULTS: list[Patch] = [
    _never_replace_a_lost_verifier,
    _emit_before_the_store_answers,
    _take_a_step_twice,
    _take_steps_of_any_opening,
    _overlook_a_step_that_is_missing,
    _open_a_verifier_from_what_is_stored,
    _open_a_drafter_from_what_is_stored,
    _open_a_verifier_again_under_the_same_number,
    _forget_what_was_received_when_a_verifier_is_lost,
    _emit_a_commit_again,
    _never_grant,
    _grant_without_the_store,
    _store_the_next_commit_before_the_answer,
    _join_commits_the_wrong_way_round,
    _lose_a_round_where_commits_are_joined,
    _forget_what_waits_when_the_store_answers,
]


def _worlds() -> list[World]:
    unkind = Faults(0.6, duplicates=0.2, lose_drafter=0.01, lose_verifier=0.01)
    late = Faults(0.7, reorder=0.05, lose_verifier=0.01)
    slow = Faults(0.9, store_speed=0.1, lose_verifier=0.02, lose_drafter=0.02)
    modes = [VerifyMode.GREEDY, VerifyMode.BLOCK]
    choices = itertools.product(range(4), [Faults(1.0), unkind, late, slow], modes)
    usual = [World(seed, faults, mode=mode) for seed, faults, mode in choices]
    restless = Faults(0.9, duplicates=0.5, reorder=0.05, lose_verifier=0.03, lose_drafter=0.03)
    drawn = [
        World(seed, restless, mode=VerifyMode.BLOCK, workers=1 + seed % 2) for seed in range(24)
    ]
    return usual + drawn


def _properties_hold(world: World) -> bool:
    try:
        world.run(steps=3000)
    except AssertionError:
        return False
    kind = not world.faults.reorder and not world.faults.duplicates
    return world.finished and world.lawful() and not (kind and world.gaps)


def test_the_properties_hold_without_a_fault() -> None:
    assert all(_properties_hold(world) for world in _worlds())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_the_properties_catch(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert not all(_properties_hold(world) for world in _worlds())
