"""The hub: what of a frame counts, who gets it, and when sessions take it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.steering.hub import GATHER
from services.contract.frames import (
    DraftFrame,
    StepEnd,
    StepFrame,
    StepRow,
    WaitReason,
    draft_rows,
    pack,
    step_frame,
    step_rows,
)
from services.contract.types import FailureReason, Role
from services.contract.worker_messages import (
    EndSession,
    PromptScores,
    SessionGone,
    SessionStarted,
    SetWindow,
    TextStates,
    Waiting,
)
from tests.orchestrator.hub_kit import (
    PLENTY,
    VOCAB,
    WINDOW,
    Noted,
    World,
    draft,
    judged,
)

# --- What counts -----------------------------------------------------------------


def test_handles_are_never_given_twice():
    world = World(2)
    first, second = world.handles
    world.hub.leave(second)
    assert world.hub.enter(Noted()) not in (first, second)


def test_a_session_takes_the_tokens_of_each_step_with_the_facts_of_the_frame():
    world = World(2)
    world.step(
        StepRow(world.handles[0], 1, 0, (3,)), step_ms=6.5, sessions=2, rows=9, started_ns=11
    )
    world.step(judged(world.handles[0], 1, (4, 5, 6), (4, 5, 9)), step_ms=7.0)
    ours, other = world.sessions
    assert (ours.tokens, other.notes) == ([3, 4, 5, 6], [])
    facts = ours.notes[0][2][0].facts
    assert (facts.step_ms, facts.sessions, facts.rows, facts.started_ns) == (6.5, 2, 9, 11)
    assert facts.heard_at == 100.0


@pytest.mark.parametrize("position", [0, 2])
def test_a_step_that_does_not_follow_the_text_ends_the_link_and_does_not_count(position):
    world = World(2)
    world.plain(0)
    first, second = world.handles
    world.step(StepRow(first, 1, 1, (8,)), StepRow(second, 1, position, (9,)))
    [(worker, reason)] = world.links.cuts
    assert (worker, reason) == ("v", f"a step at {position}, where 1 tokens were received")
    assert [session.tokens for session in world.sessions] == [[7], [7]]


def test_a_step_from_below_the_limit_may_pass_it_by_the_window():
    world = World(0)
    handle = world.enter(limit=1)
    world.step(judged(handle, 0, (1, 2, 3, 4, 5), (1, 2, 3, 4)))
    assert (world.sessions[0].tokens, world.links.cuts) == ([1, 2, 3, 4, 5], [])
    world.step(StepRow(handle, 1, 5, (6,)))
    assert [worker for worker, _ in world.links.cuts] == ["v"]
    assert world.sessions[0].tokens == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "row",
    [
        judged(1, 0, tuple(range(WINDOW + 2)), tuple(range(WINDOW + 1))),
        judged(1, 0, (1, 2), (1, *range(WINDOW + 1))),
        StepRow(1, 1, 0, (VOCAB,)),
        judged(1, 0, (1, 2), (1, VOCAB)),
        StepRow(1, 2, 0, (1,)),
    ],
    ids=["tokens beyond window", "nodes beyond window", "token", "drafted token", "opening"],
)
def test_a_step_that_no_verifier_can_have_taken_ends_the_link(row):
    world = World()
    world.step(row)
    [(worker, reason)] = world.links.cuts
    [(kind, who, gone)] = world.sessions[0].notes
    assert (worker, kind, who) == ("v", "heard", "v")
    assert (gone.opening, gone.message) == (1, reason)


def test_a_last_row_may_judge_one_token_behind_a_whole_window():
    world = World()
    tokens = tuple(range(WINDOW + 1))
    world.step(judged(world.handles[0], 0, tokens, tokens, StepEnd.NONE))
    assert (world.sessions[0].tokens, world.links.cuts) == (list(tokens), [])


def test_steps_of_unknown_foreign_and_left_sessions_are_skipped():
    world = World(2)
    ours, left = world.handles
    foreign = world.enter(verifier="w")
    world.hub.leave(left)
    world.step(*[StepRow(own, 1, 0, (5,)) for own in (ours, left, foreign, 4_000_000_000)])
    assert [session.tokens for session in world.sessions] == [[5], [], []]
    assert world.links.cuts == []


def test_late_steps_of_an_earlier_opening_or_of_the_verifier_before_are_skipped():
    world = World(2)
    moved, anew = world.handles
    world.hub.verified_by(moved, "w", 2, 0, PLENTY, WINDOW)
    world.hub.verified_by(anew, "v", 2, 0, PLENTY, WINDOW)
    world.plain(0, token=1)
    world.step(StepRow(moved, 2, 0, (2,)), worker="w")
    world.step(StepRow(anew, 2, 0, (3,)))
    assert [session.tokens for session in world.sessions] == [[2], [3]]
    assert world.links.cuts == []


def test_a_session_without_a_verifier_takes_no_step():
    world = World()
    world.hub.verified_by(world.handles[0], None)
    world.plain(0)
    assert world.sessions[0].notes == []


@given(st.data())
def test_a_session_takes_its_text_once_and_in_order_whatever_comes_late_doubled_or_from_others(
    data,
):
    """Each opening is cut where something impossible is heard; then the next one goes on."""
    world = World(3)
    opening, heard = dict.fromkeys(world.handles, 1), []

    def reopen(handle):
        opening[handle] += 1
        took = world.sessions[world.handles.index(handle)].tokens
        world.hub.verified_by(handle, "v", opening[handle], len(took), PLENTY, WINDOW)

    for _ in range(data.draw(st.integers(1, 30))):
        old = data.draw(st.integers(0, len(heard)))
        if old < len(heard):
            rows = heard[old]
        else:
            who = data.draw(st.sets(st.sampled_from(world.handles), min_size=1))
            rows = [
                StepRow(own, opening[own], at, (at % VOCAB,))
                for own in sorted(who)
                for at in [data.draw(st.integers(0, 3)) + len(world.sessions[own - 1].tokens)]
            ]
            heard.append(rows)
        world.step(*rows)
        world.loop.run(data.draw(st.sampled_from([0.0, 0.03])))
        if world.links.cuts:
            world.links.cuts.clear()
            world.hub.lost("v", Role.VERIFIER, world.handles, "cut")
            for handle in world.handles:
                reopen(handle)
    world.loop.run(1.0)
    for session in world.sessions:
        assert session.tokens == list(range(len(session.tokens)))


# --- Who gets it -----------------------------------------------------------------


def test_a_frame_whose_sessions_draft_at_one_drafter_goes_on_as_it_came():
    world = World(3, drafter="d")
    frame = world.plain(0)
    assert [own is frame for own in world.links.frames("d")] == [True]


def test_each_drafter_gets_the_steps_of_its_sessions_alone():
    world = World(3, drafter="d")
    world.drafts_at(world.handles[1], "e")
    world.enter()
    world.plain(0)
    handles = {
        name: [list(own.every_handle()) for own in world.links.frames(name)] for name in "de"
    }
    assert handles == {"d": [[1, 3]], "e": [[2]]}


def test_nobody_is_told_of_steps_of_sessions_without_a_drafter():
    world = World(2)
    world.plain(0)
    assert world.links.passed == []


def test_a_drafter_is_not_told_of_late_steps():
    world = World(2, drafter="d")
    world.hub.verified_by(world.handles[0], "w", 2, 0, PLENTY, WINDOW)
    world.plain(0)
    [frame] = world.links.frames("d")
    assert [row.handle for row in step_rows(frame)] == [world.handles[1]]


def test_a_frame_with_a_fault_goes_to_no_drafter():
    world = World(2, drafter="d")
    world.step(StepRow(1, 1, 0, (5,)), StepRow(2, 1, 4, (5,)))
    assert world.links.frames("d") == []


def test_windows_go_on_with_the_steps_that_are_selected():
    world = World(1, drafter="d")
    world.enter(drafter="e")
    rows = [StepRow(own, 1, 0, (5,)) for own in world.handles]
    world.hub.heard("v", Role.VERIFIER, step_frame(StepFrame(1), rows, (3, 9)))
    assert [world.links.frames(name)[0].windows for name in "de"] == [b"\x03", b"\x09"]


def test_sessions_hear_how_far_their_drafters_are_to_be_ahead_where_that_has_changed():
    world = World(2, drafter="d")
    for position, windows in enumerate(((3, 0), ())):
        rows = [StepRow(own, 1, position, (5,)) for own in world.handles]
        world.hub.heard("v", Role.VERIFIER, step_frame(StepFrame(1), rows, windows))
        world.loop.run()
    heard = [[taken.window for note in own.notes for taken in note[2]] for own in world.sessions]
    assert heard == [[3, None], [0, None]]


def test_drafts_for_one_verifier_go_on_as_they_came():
    world = World(2, drafter="d")
    frame = world.drafted(*map(draft, world.handles))
    assert [own is frame for own in world.links.frames("v", DraftFrame)] == [True]


def test_each_verifier_gets_the_drafts_of_its_sessions_alone():
    world = World(2, drafter="d")
    world.enter("d", verifier="w")
    world.drafted(*map(draft, world.handles))
    told = {name: world.links.frames(name, DraftFrame) for name in "vw"}
    handles = {
        name: [draft.handle for own in told[name] for draft in draft_rows(own)] for name in "vw"
    }
    assert handles == {"v": [1, 2], "w": [3]}


def test_drafts_of_others_of_the_drafter_before_and_of_earlier_openings_are_skipped():
    world = World(4, drafter="d")
    ours, moved, anew, nobodys = world.handles
    world.drafts_at(moved, "e")
    world.drafts_at(anew, "d", opening=2)
    world.hub.drafted_by(nobodys, None)
    foreign = world.enter("e")
    world.drafted(*map(draft, [ours, moved, anew, nobodys, foreign, 99]))
    [frame] = world.links.frames("v", DraftFrame)
    assert [own.handle for own in draft_rows(frame)] == [ours]
    assert world.links.cuts == []


def test_drafts_of_a_session_that_moves_go_to_nobody():
    world = World(1, drafter="d")
    world.hub.verified_by(world.handles[0], None)
    world.drafted(draft(world.handles[0]))
    assert world.links.passed == []


@pytest.mark.parametrize(
    "wrong",
    [
        draft(2, opening=2),
        draft(2, position=300),
        draft(2, tokens=range(1025)),
        draft(2, tokens=(1, VOCAB)),
    ],
    ids=["an opening to come", "far ahead", "huge", "a token beyond the vocabulary"],
)
def test_a_draft_that_cannot_be_right_ends_the_drafters_link_and_goes_nowhere(wrong):
    world = World(2, drafter="d")
    world.drafted(draft(1), wrong)
    [(worker, reason)] = world.links.cuts
    assert world.sessions[0].notes == []
    [(kind, who, gone)] = world.sessions[1].notes
    assert (worker, kind, who) == ("d", "heard", "d")
    assert (gone.opening, gone.message) == (1, reason)
    assert world.links.frames("v", DraftFrame) == []


def test_a_drafter_that_floods_a_session_which_does_not_move_is_cut_off():
    world = World(1, drafter="d")
    for number in range(5000):
        world.drafted(draft(1, number=number))
        if world.links.cuts:
            break
    assert world.links.cuts == [("d", "1024 drafts without a step")]
    assert len(world.links.frames("v", DraftFrame)) == 1024


def test_drafts_without_end_are_in_order_where_the_text_goes_on():
    world = World(1, drafter="d")
    for position in range(20):
        for number in range(100):
            world.drafted(draft(1, position, number=100 * position + number))
        world.plain(position)
    assert world.links.cuts == []
    assert len(world.links.frames("v", DraftFrame)) == 2000


# --- When sessions take it -------------------------------------------------------


def test_an_idle_session_takes_each_step_as_it_comes():
    world = World()
    for position in range(50):
        world.plain(position)
        assert len(world.sessions[0].tokens) == position + 1
        world.loop.run(0.006)


def test_steps_of_a_busy_orchestrator_are_joined_for_at_most_20_ms():
    world = World(24)
    begun = world.busy()
    assert world.hub.interval == 0.02
    for session in world.sessions:
        session.notes.clear()
    for step in range(10):
        world.plain(begun + step)
        world.loop.run(0.006)
    for session in world.sessions:
        joined = [len(taken) for _, _, taken in session.notes]
        assert sum(joined) >= 6
        assert max(joined) in (3, 4)
    world.loop.run(0.02)
    assert all(len(session.tokens) == 10 for session in world.sessions)


def test_a_session_that_was_silent_takes_its_step_at_once_among_busy_ones():
    world = World(24)
    world.busy()
    late = world.enter()
    world.step(StepRow(late, 1, 0, (5,)))
    assert world.sessions[-1].tokens == [5]


def test_steps_are_taken_at_once_again_when_the_orchestrator_has_little_to_do():
    world = World(2)
    begun = world.busy()
    for step in range(400):
        world.loop.cpu += 1e-5
        world.plain(begun + step)
        world.loop.run(0.006)
    assert world.hub.interval < 0.001
    assert len(world.sessions[0].tokens) == begun + 400


def test_two_links_join_their_steps_each_session_at_its_own_time():
    world = World(4)
    other = [world.enter(verifier="w") for _ in range(4)]
    begun = 160
    for position in range(begun):
        world.loop.cpu += 1.0
        world.step(*[StepRow(own, 1, position, (7,)) for own in world.handles[:4]])
        world.step(*[StepRow(own, 1, position, (7,)) for own in other], worker="w")
        world.loop.run(0.025)
    world.step(*[StepRow(own, 1, begun, (7,)) for own in world.handles[:4]])
    world.loop.run(0.005)
    world.step(*[StepRow(own, 1, begun, (7,)) for own in other], worker="w")
    world.loop.run(0.03)
    assert {len(session.tokens) for session in world.sessions} == {begun + 1}


@pytest.mark.parametrize("what", ["heard", "lost"])
def test_a_session_knows_all_that_was_received_before_it_hears_that_a_worker_failed(what):
    world = World(2)
    begun = world.busy()
    [ours, _], handle = world.sessions, world.handles[0]
    ours.notes.clear()
    world.plain(begun)
    world.plain(begun + 1)
    if what == "lost":
        world.hub.lost("v", Role.VERIFIER, world.handles, "it died")
    else:
        world.hub.heard("v", Role.VERIFIER, SessionGone(handle, 1, FailureReason.CAPACITY))
    assert (ours.kinds[-1], len(ours.tokens)) == (what, 2)


def test_steps_that_a_session_did_not_take_before_it_moved_are_nobodys():
    world = World(1)
    begun = world.busy()
    ours, handle = world.sessions[0], world.handles[0]
    world.plain(begun)
    world.plain(begun + 1)
    known = len(ours.tokens)
    world.hub.verified_by(handle, "w", 2, known, PLENTY, WINDOW)
    world.loop.run(1.0)
    assert len(ours.tokens) == known
    world.step(StepRow(handle, 2, known, (9,)), worker="w")
    world.loop.run(1.0)
    assert ours.tokens[known:] == [9]
    assert world.links.cuts == []


def test_a_drafter_is_opened_with_what_the_session_has_yet_to_take():
    world = World(1)
    begun = world.busy()
    handle, ours = world.handles[0], world.sessions[0]
    world.plain(begun, token=11)
    world.plain(begun + 1, token=12)
    known = tuple(ours.tokens)
    world.drafts_at(handle, "d", output=known)
    worker, session, opening = world.links.sent[-1]
    assert (worker, session) == ("d", handle)
    assert len(opening.output) == begun + 2
    assert opening.output[begun:] == (11, 12)
    world.plain(begun + 2)
    [row] = step_rows(world.links.frames("d")[0])
    assert row.position == len(opening.output)


def test_what_a_session_does_while_it_takes_its_steps_hits_no_other():
    world = World(3)
    first = world.sessions[0]
    first.on_note = lambda: [world.hub.leave(own) for own in world.handles[:2]]
    world.plain(0)
    assert [session.tokens for session in world.sessions] == [[7], [], [7]]


# --- Commands, grants and news ---------------------------------------------------


def test_commands_go_to_the_worker_and_an_end_closes_the_session_there():
    world = World(1)
    handle = world.handles[0]
    world.hub.send("v", SetWindow(handle, 2))
    world.hub.send("v", EndSession(handle))
    assert world.links.sent == [("v", handle, SetWindow(handle, 2))]
    assert world.links.released == [("v", handle)]


def test_who_leaves_is_closed_at_both_workers_and_may_leave_again():
    world = World(1, drafter="d")
    world.hub.leave(world.handles[0])
    world.hub.leave(world.handles[0])
    assert world.links.released == [("v", world.handles[0]), ("d", world.handles[0])]


def test_grants_go_out_together_the_last_limit_of_each():
    world = World(0)
    first, second, third = (world.enter(verifier=own, limit=10) for own in "vvw")
    for handle, limit in [(first, 20), (second, 21), (first, 22), (third, 23), (second, 5)]:
        world.hub.grant(handle, limit)
    assert world.links.passed == []
    world.loop.run(GATHER)
    assert world.links.granted("v") == [{first: 22, second: 21}]
    assert world.links.granted("w") == [{third: 23}]
    world.hub.grant(first, 22)
    world.loop.run(GATHER)
    assert len(world.links.granted("v")) == 1


def test_a_grant_lets_a_verifier_go_on():
    world = World(0)
    handle = world.enter(limit=1)
    world.step(StepRow(handle, 1, 0, (5,)))
    world.hub.grant(handle, 2)
    world.step(StepRow(handle, 1, 1, (6,)))
    assert (world.sessions[0].tokens, world.links.cuts) == ([5, 6], [])


def test_a_grant_that_came_behind_the_next_opening_still_counts():
    world = World(0)
    handle = world.enter(limit=1)
    world.hub.grant(handle, 5)
    world.hub.verified_by(handle, "v", 2, 0, 2, 0)
    for position in range(5):
        world.step(StepRow(handle, 2, position, (6,)))
    assert world.links.cuts == []
    world.step(StepRow(handle, 2, 5, (6,)))
    assert [worker for worker, _ in world.links.cuts] == ["v"]


@pytest.mark.parametrize(
    ("role", "event"),
    [
        (Role.VERIFIER, SessionStarted(1, 1)),
        (Role.DRAFTER, SessionStarted(1, 1)),
        (Role.VERIFIER, TextStates(1, 1, 0, b"12")),
        (Role.VERIFIER, PromptScores(1, 1, 0, ())),
        (Role.VERIFIER, SessionGone(1, 1, FailureReason.CAPACITY)),
    ],
)
def test_a_session_hears_its_own_workers_alone(role, event):
    world = World(1, drafter="d")
    ours, other = ("v", "d") if role is Role.VERIFIER else ("d", "v")
    world.hub.heard(other, role, event)
    assert world.sessions[0].notes == []
    world.hub.heard(ours, role, event)
    assert world.sessions[0].notes == [("heard", ours, event)]


@pytest.mark.parametrize(("opening", "closed"), [(1, []), (2, [("v", 1)])])
def test_a_session_that_failed_is_no_longer_counted_there_unless_it_was_opened_anew(
    opening, closed
):
    world = World(1)
    world.hub.verified_by(1, "v", 2, 0, PLENTY, WINDOW)
    world.hub.heard("v", Role.VERIFIER, SessionGone(1, opening, FailureReason.CAPACITY))
    assert world.links.released == closed


def test_sessions_hear_why_they_take_no_part_in_steps():
    world = World(2)
    foreign = world.enter(verifier="w")
    told = Waiting(pack("I", [1, 2, foreign, 99]), bytes([1, 3, 1, 1]))
    world.hub.heard("v", Role.VERIFIER, told)
    assert [session.notes for session in world.sessions] == [
        [("heard", "v", WaitReason.CREDIT)],
        [("heard", "v", WaitReason.PROMPT)],
        [],
    ]


def test_a_lost_worker_is_no_news_for_sessions_that_have_another_one():
    world = World(2, drafter="d")
    world.hub.verified_by(world.handles[0], "w", 2, 0, PLENTY, WINDOW)
    world.hub.lost("v", Role.VERIFIER, [*world.handles, 99], "it died")
    assert [session.notes for session in world.sessions] == [[], [("lost", "v", "it died")]]
    world.hub.lost("d", Role.DRAFTER, world.handles, "it died")
    assert [session.kinds for session in world.sessions] == [["lost"], ["lost", "lost"]]


@pytest.mark.parametrize("role", Role)
def test_a_worker_that_said_what_does_not_add_up_has_failed_all_its_sessions(role):
    world = World(2, drafter="d")
    worker = "v" if role is Role.VERIFIER else "d"
    world.hub.lost(worker, role, [*world.handles, 99], "it lies", faulty=True)
    gone = [SessionGone(own, 1, FailureReason.INTERNAL, "it lies") for own in world.handles]
    assert [own.notes for own in world.sessions] == [[("heard", worker, own)] for own in gone]


def test_the_time_of_a_message_is_measured_within_what_clocks_can_tell():
    world = World(1)
    for position in range(100):
        started = int((world.loop.now - 0.009) * 1e9)
        world.step(StepRow(1, 1, position, (5,)), step_ms=6.0, started_ns=started)
    assert world.hub.hop == pytest.approx(0.003, rel=0.02)
    for position in range(100, 200):
        world.step(StepRow(1, 1, position, (5,)), started_ns=1)
    assert world.hub.hop == pytest.approx(0.02, rel=0.02)
