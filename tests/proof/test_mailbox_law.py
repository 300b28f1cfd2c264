"""The law of the mailbox: what the design allows is exact, what would break it is seen.

The real mailbox and the real core of a verifier that runs its sessions; see `mailbox_loop`.
"""

from dataclasses import replace

import pytest

from services.contract.types import VerifyMode
from services.verifier.running import deciding
from services.verifier.running.mailbox import NO_TREE
from tests.proof.mailbox_loop import ALLOWED, SEEN, DraftsHere, DraftsHereToo, Loop

MODES = pytest.mark.parametrize(
    "mode", [VerifyMode.STANDARD, VerifyMode.BLOCK], ids=lambda m: m.name
)
EXACT, SEEN_FROM = 1e-12, 1e-4
LENGTH = 3
SEEDS = [0, *[pytest.param(seed, marks=pytest.mark.proof) for seed in range(1, 12)]]


def worst(case, mode, seeds=8):
    """The first error that stands out among some adversaries, else the largest."""
    found = 0.0
    for seed in range(seeds):
        found = max(found, case(mode, LENGTH, seed).error())
        if found > SEEN_FROM:
            break
    return found


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(1, 12))]
)
@pytest.mark.parametrize("case", ALLOWED, ids=lambda case: case.__name__)
@MODES
def test_the_law_is_exact_whatever_comes_when_and_whoever_dies(mode, case, seed):
    assert case(mode, LENGTH, seed).error() < EXACT


def test_the_adversaries_bring_about_what_they_are_for():
    for seed in range(3):
        Loop(VerifyMode.STANDARD, LENGTH, seed).error()
    DraftsHereToo(VerifyMode.STANDARD, LENGTH, 0).error()
    wanted = ("in the middle of a step", "late tokens judged", "doubled", "own tokens judged")
    assert all(SEEN[what] for what in (*wanted, "another draft beside own tokens"))


# --- what breaks it -----------------------------------------------------------------------


class SentByItsToken(Loop):
    """A drafter that sends some tokens later than others."""

    def _wired(self, st, tick):
        if st.tail[-1:] == (0,) and tick % 3:
            return st
        return super()._wired(st, tick)


class CutByItsToken(Loop):
    """A step that leaves a token out for what it is."""

    def begin(self, st, tick):
        st = super().begin(st, tick)
        if st.step and st.box.tokens[st.step - 1] == 0:
            return st._replace(step=0, box=st.box._replace(tokens=(), name=(0, 0)))
        return st


class TailKept(Loop):
    """A drafter that goes on with its tail beside another token of the target."""

    def hear(self, st):
        new, tail = st.text[st.known :], st.tail
        after = super().hear(st)
        return after._replace(tail=tail[len(new) :], number=st.number, sent=0)


class OwnDraftByItsToken(DraftsHere):
    """A verifier that drafts anew where it does not like what it drafted."""

    def _proposed(self, st, tick):
        for weight, own in super()._proposed(st, tick):
            yield weight, st if own.box.tokens[:1] == (0,) and tick % 3 else own


@pytest.mark.parametrize("case", [SentByItsToken, CutByItsToken, TailKept, OwnDraftByItsToken])
@MODES
def test_a_process_that_breaks_the_law_is_seen(mode, case):
    assert worst(case, mode) > SEEN_FROM


@MODES
def test_a_last_row_that_is_decided_by_the_late_token_is_seen(monkeypatch, mode):
    rightly = deciding._late

    def picky(turn, outcome):
        late = rightly(turn, outcome)
        return NO_TREE if late.token_ids == (0,) else late

    monkeypatch.setattr(deciding, "_late", picky)
    assert worst(Loop, mode) > SEEN_FROM


@MODES
def test_a_token_of_the_targets_own_in_place_of_a_late_ones_residual_is_seen(monkeypatch, mode):
    rightly = deciding._draw

    def own(lasts):
        return rightly(
            {
                i: (asked, replace(end, law=asked.log_p[end.final[1]].exp()))
                for i, (asked, end) in lasts.items()
            }
        )

    monkeypatch.setattr(deciding, "_draw", own)
    assert worst(Loop, mode) > SEEN_FROM
