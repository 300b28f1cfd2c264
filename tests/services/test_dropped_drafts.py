"""What a verifier tells of its steps beside what they brought: drafts in vain, who stood out."""

from collections import Counter

import pytest

from services.contract.frames import WaitReason
from services.contract.types import DraftTree
from services.contract.worker_messages import EndSession
from services.runtime.step_records import Dropped
from tests.services.running_bench import FREE, TEXT, VOCAB, Fixed, Running, draft, limit, start


class Told(Running):
    """A core whose step records are kept."""

    def __init__(self, **options):
        self.records = []
        super().__init__(on_step=self.records.append, **options)

    @property
    def dropped(self):
        return {reason: n for reason, n in sum_of(self.records).items() if n}


def sum_of(records):
    total = Counter()
    for record in records:
        total.update(record.dropped)
    return total


def wrong(token):
    return (token + 1) % VOCAB


def test_a_draft_that_is_verified_whole_is_not_dropped():
    table = Told()
    table.step(start(max_tokens=5))
    table.run(draft(TEXT[1:4], TEXT[:1]))
    assert table.output() == TEXT[:5]
    assert table.dropped == {}


def test_tokens_that_were_judged_and_rejected_are_not_dropped_and_those_behind_the_window_are():
    table = Told()
    table.step(start(window=3))
    table.step(draft((TEXT[1], wrong(TEXT[2]), 5, 6, 7), TEXT[:1]))
    assert table.dropped == {Dropped.DEPARTED: 2}


def test_what_the_target_said_meanwhile_is_passed():
    table = Told()
    table.step(start(window=2))
    table.step(draft(TEXT[1:6], TEXT[:1]))
    assert table.output() == TEXT[:4]
    assert table.dropped == {Dropped.PASSED: 1}
    table.during = [[draft(TEXT[4:8], TEXT[:4], number=2)]]
    table.step()
    assert table.dropped[Dropped.REPLACED] == 2


def test_what_came_for_a_text_that_has_gone_on_otherwise_is_late():
    table = Told()
    table.step(start())
    table.step(draft((wrong(TEXT[0]), 1, 2), ()))
    table.step(draft(TEXT[1:3], TEXT[:1], opening=0))
    assert table.dropped == {Dropped.LATE: 5}


def test_nodes_beside_what_was_said_are_passed_unless_they_were_judged():
    table = Told()
    table.step(start(window=2))
    tree = DraftTree((TEXT[1], wrong(TEXT[1]), TEXT[2], TEXT[3]), (-1, -1, 0, 2))
    table.step(draft((), TEXT[:1], tree=tree))
    assert table.output() == TEXT[:3]
    assert table.dropped == {Dropped.PASSED: 1}


def test_what_is_held_when_a_session_ends_is_told_with_the_next_step():
    table = Told(pacing=Nothing())
    table.step(start())
    table.step(start(handle=2), draft(TEXT[1:4], TEXT[:1]))
    table.step(EndSession(1))
    assert table.dropped == {Dropped.PASSED: 1, Dropped.ENDED: 2}


class Nothing(Fixed):
    """A policy that verifies no draft."""

    def allot(self, offers):
        return super().allot([own._replace(tokens=0) for own in offers])


def test_a_step_tells_how_many_sessions_of_all_links_stood_out_and_why():
    table = Told()
    table.run(start(limit=2))
    table.run(start(limit=1), link=2)
    table.step(start(handle=2))
    out = table.records[-1].stood_out
    assert out[WaitReason.CREDIT - 1] == sum(out) == 2


@pytest.mark.parametrize(("more", "waited_ms"), [((), 500.0), ((limit(FREE),), 250.0)])
def test_a_session_without_credit_waits_for_its_step_from_its_next_credit_on(more, waited_ms):
    table = Told()
    table.run(start(limit=2 if more else FREE, max_tokens=3), steps=2)
    table.clock.now += 0.25
    table.give(*more)
    table.clock.now += 0.25
    [row] = table.step()
    assert row.queue_ms == pytest.approx(waited_ms)
