"""STANDARD and BLOCK say what the target says, whatever drafts meet on their way: exactly.

Each rule of the drafter is broken once, so that the reckoning would show it.
"""

import random
from collections import Counter

import pytest

from services.contract.types import VerifyMode
from tests.services.drafter_kit import SAMPLED
from tests.services.loop_law import Loop, Mailbox, World


class Turns(Loop):
    """Drafting and verifying take turns."""

    synchronous = True
    window = 2


class Windows(Loop):
    """The window moves, by counts alone."""

    moves_window = True


class VerifierDies(Loop):
    strikes = "verifier"


class DrafterDies(Loop):
    strikes = "drafter"


class OrchestratorDies(Loop):
    strikes = "orchestrator"


ALLOWED = (Loop, Turns, Windows, VerifierDies, DrafterDies, OrchestratorDies)


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("case", ALLOWED)
def test_the_text_has_the_targets_law_in_any_order_of_arrival(case, mode):
    seen = Counter()
    for size, length, seeds in ((2, 4, 8), (3, 3, 3)):
        for seed in range(seeds):
            loop = case(World(seed % 3, size), mode, length, seed)
            assert loop.error() == 0, (size, seed)
            seen.update(loop.seen)
    for what in ("rejected", "kept its draft", "judged late"):
        assert seen[what], what
    assert seen["died with work under way"] or not case.strikes


@pytest.mark.parametrize("case", [VerifierDies, DrafterDies, OrchestratorDies])
@pytest.mark.parametrize("mode", SAMPLED)
def test_no_number_is_drawn_twice_in_a_life(case, mode):
    for seed in range(60):
        keys = case(World(seed % 3), mode, 5, seed).life(random.Random(seed))
        assert len(keys) == len({*keys})


# --- what would break it -----------------------------------------------------------


class SendsByToken(Loop):
    """A draft that ends in token 1 leaves later than others."""

    def may_send(self, st, tick, session):
        return super().may_send(st, tick, session) and (session.text[-1] == 0 or tick % 4 == 3)


class RedrawsUnlikely(Loop):
    """An unlikely token is drawn once more, under another name."""

    def draw_one(self, session, dice):
        super().draw_one(session, dice)
        text = tuple(session.text[1:])
        if 2 * self.world.q(text[:-1])[text[-1]] < 1:
            for tail in (session.text, session._hashes, session._laws, session._sources):
                del tail[-1]
            session._number += 1
            session._sent = 0
            super().draw_one(session, dice)


class Unhashed(Mailbox):
    """Takes drafts by their position alone."""

    __slots__ = ()

    def put(self, draft, output, now):
        goes_on = draft.name == self.name and self.tokens
        known = self.end_hash if goes_on else output.hash_at(draft.position)
        return super().put(draft if known is None else draft._replace(hash=known), output, now)


Unhashed.__slots__ = Mailbox.__slots__


class JoinedByPosition(Loop):
    """No hash says of which text a draft is."""

    mailbox = Unhashed
    checks_laws = False


class KeysForgetOpenings(DrafterDies):
    """The next drafter counts its drafts from nothing, and draws by the count alone."""

    def shared(self, stream, *rest):
        return ("D", rest[0] & 0xFFFFFFFF, rest[1]) if stream == "D" else None


class KeysForgetNumbers(Loop):
    """What is drafted again at a place is drawn with the same number."""

    def shared(self, stream, *rest):
        return ("D", rest[1]) if stream == "D" else None


BROKEN = [
    (SendsByToken, VerifyMode.STANDARD),
    (SendsByToken, VerifyMode.BLOCK),
    (RedrawsUnlikely, VerifyMode.STANDARD),
    (RedrawsUnlikely, VerifyMode.BLOCK),
    (JoinedByPosition, VerifyMode.STANDARD),
    (JoinedByPosition, VerifyMode.BLOCK),
    (KeysForgetOpenings, VerifyMode.BLOCK),
    (KeysForgetNumbers, VerifyMode.BLOCK),
]


@pytest.mark.parametrize(("case", "mode"), BROKEN)
def test_a_drafter_that_breaks_a_rule_is_caught(case, mode):
    loops = (case(World(w), mode, 4, seed) for seed in range(8) for w in (0, 1))
    assert any(loop.error() > 0 for loop in loops)
