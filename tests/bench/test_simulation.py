"""The simulator: the served machine in exact time, against closed forms and deliberate faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest

from bench.simulation import (
    Independent,
    KeptBranches,
    Listed,
    Runs,
    Scenario,
    Simulation,
    StepTime,
    simulate,
)
from bench.simulation.agenda import Agenda, Link
from bench.simulation.constants import Constant
from bench.simulation.report import quantile
from bench.simulation.scenario import Prompts
from bench.simulation.session import replayed
from bench.simulation.verifier import SimulatedVerifier
from orchestrator.core.events import VerdictArrived, WorkerAttached
from orchestrator.core.pacing import POLICIES, Decision, FinishedRound, Fixed, Policy, Send, View
from services.contract.types import (
    DraftTree,
    OpenVerify,
    ResolvedSampling,
    Verdict,
    Verify,
    VerifyMode,
)

EXACT = Scenario(
    text=Independent(0.8), verify=StepTime(30.0), draft=StepTime(5.0), hop_ms=1.0, persist_ms=0.0,
    sessions=4, tokens=40,
)  # fmt: skip
BUSY = replace(
    EXACT,
    verify=StepTime(25.0, row_ms=0.5, session_ms=1.0, several_ms=27.0),
    jitter_ms=3.0,
    persist_ms=2.0,
    cpu_ms=0.3,
    sessions=9,
    concurrency=4,
    kept=KeptBranches(0.5),
)


# --- the same scenario is the same run ------------------------------------------------


@pytest.mark.parametrize("pacing", POLICIES)
def test_the_same_seed_gives_the_same_run_and_another_seed_another(pacing):
    scenario = replace(BUSY, pacing=pacing)
    assert simulate(scenario) == simulate(scenario)
    assert simulate(scenario) != simulate(replace(scenario, seed=2))


@pytest.mark.parametrize("pacing", POLICIES)
def test_a_recorded_session_decides_the_same_when_it_is_replayed(pacing):
    simulation = Simulation(replace(BUSY, pacing=pacing), record=True)
    simulation.run()
    assert len(simulation.ended_sessions) == BUSY.sessions
    for session in simulation.ended_sessions:
        turns = session.account.turns
        assert len(turns) > BUSY.tokens
        assert replayed(session.beginning, [event for event, _ in turns]) == turns


def test_a_replay_that_hears_something_else_decides_something_else():
    simulation = Simulation(BUSY, record=True)
    simulation.run()
    session = simulation.ended_sessions[0]
    turns = session.account.turns
    lost = [event for event, _ in turns]
    del lost[next(i for i, event in enumerate(lost) if isinstance(event, VerdictArrived))]
    assert replayed(session.beginning, lost) != turns


# --- the text -----------------------------------------------------------------------


@pytest.mark.parametrize("pacing", [*POLICIES, "plain"])
@pytest.mark.parametrize("rate", [0.0, 0.7, 1.0])
def test_every_session_says_what_the_target_says(pacing, rate):
    simulation = Simulation(replace(BUSY, pacing=pacing, text=Independent(rate)))
    assert simulation.run().tokens == BUSY.sessions * BUSY.tokens
    for session in simulation.ended_sessions:
        assert session.state.committed == tuple(session._truth[: BUSY.tokens])


def test_a_verifier_that_lets_a_wrong_token_through_is_found_out(monkeypatch):
    judged = SimulatedVerifier._judged

    def lenient(self, task, started):
        verdict = judged(self, task, started)
        if verdict.all_accepted:
            return verdict
        kept = task.tokens[: verdict.accepted + 1]
        return verdict._replace(
            token_ids=kept, accepted=len(kept), all_accepted=len(kept) == len(task.tokens)
        )

    monkeypatch.setattr(SimulatedVerifier, "_judged", lenient)
    with pytest.raises(AssertionError, match="not the target's own"):
        simulate(EXACT)


def test_where_a_drafter_is_right_depends_on_the_place_alone():
    """Whatever the pacing: a text that is always wrong at the same places is accepted there."""
    right = (True, True, False) * 20
    for pacing in POLICIES:
        simulation = Simulation(replace(EXACT, text=Listed(right), pacing=pacing))
        simulation.run()
        assert {sent - accepted > 0 for s in simulation.ended_sessions
                for sent, accepted in s.account.blocks} >= {True}  # fmt: skip
        for session in simulation.ended_sessions:
            assert all(accepted <= 2 for _, accepted in session.account.blocks)


# --- closed forms -------------------------------------------------------------------


def test_plain_decoding_takes_a_forward_and_the_way_there_and_back():
    report = simulate(replace(EXACT, pacing="plain"))
    assert report.ms_per_token == pytest.approx(30.0 + 2 * 1.0)
    assert report.tokens_per_round == 1.0


def rounds_of(right, tokens: int, count: int) -> list[tuple[int, int]]:
    """Tokens sent and accepted in rounds of `count`, reckoned from the text alone."""
    place, rounds = 0, []
    while place < tokens:
        sent = min(count, tokens - place - 1)
        accepted = next((i for i in range(sent) if not right[place + i]), sent)
        rounds.append((sent, accepted))
        place += accepted + 1
    return rounds


@pytest.mark.parametrize(("rate", "count"), [(0.5, 3), (0.8, 5), (0.9, 2)])
def test_synchronous_rounds_bring_what_the_text_and_the_formula_say(rate, count):
    """Leviathan et al. 2023, equation 1; the ends of the texts bring a little less."""
    right = tuple(Independent(rate).places(2500, Random(5)))
    scenario = replace(EXACT, policy=Fixed(count), text=Listed(right), tokens=2500, sessions=1)
    simulation = Simulation(scenario)
    report = simulation.run()
    assert simulation.ended_sessions[0].account.blocks == rounds_of(right, 2500, count)
    expected = (1.0 - rate ** (count + 1)) / (1.0 - rate)
    assert report.tokens_per_round == pytest.approx(expected, rel=0.05)


def test_a_synchronous_round_is_drafting_verifying_and_four_hops():
    report = simulate(replace(EXACT, policy=Fixed(4), text=Independent(1.0), tokens=500))
    rounds_ms = report.ms_per_token * report.tokens_per_round
    assert rounds_ms == pytest.approx(4 * 5.0 + 30.0 + 4 * 1.0, rel=0.01)


def test_with_a_perfect_drafter_the_slower_side_sets_the_pace():
    perfect = replace(EXACT, text=Independent(1.0), tokens=600, fallback=False, hop_ms=0.25)
    drafter_bound = simulate(replace(perfect, draft=StepTime(12.0)))
    assert drafter_bound.ms_per_token == pytest.approx(12.0, rel=0.02)
    assert drafter_bound.drafter_use > 0.98
    verifier_bound = simulate(replace(perfect, draft=StepTime(1.0), policy=Constant(32, 9)))
    assert verifier_bound.ms_per_token == pytest.approx(30.5 / 10, rel=0.02)
    assert verifier_bound.verifier_use > 0.95


def test_sessions_that_are_ready_together_share_a_forward():
    many = replace(EXACT, pacing="plain", sessions=8, concurrency=8)
    report = simulate(many)
    assert (report.forwards, report.ms_per_token) == (many.tokens, pytest.approx(32.0))
    dearer = replace(many, verify=StepTime(30.0, session_ms=2.0))
    assert simulate(dearer).ms_per_token == pytest.approx(30.0 + 7 * 2.0 + 2.0)


def test_an_event_s_computing_holds_up_the_events_behind_it():
    alone = replace(EXACT, pacing="plain", sessions=1)
    free, dear = simulate(alone), simulate(replace(alone, cpu_ms=2.0))
    # The verdict is handled, then the answer of the store, while the next block flies.
    assert dear.ms_per_token == pytest.approx(free.ms_per_token + 2.0, rel=0.02)


# --- faults that must show ------------------------------------------------------------


@dataclass(frozen=True)
class OneFewer:
    """A policy that holds one token back."""

    inner: Policy

    @property
    def window(self) -> int:
        return self.inner.window

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        return Send(max(0, decision.count - 1)) if isinstance(decision, Send) else decision

    def observe(self, outcome: FinishedRound) -> OneFewer:
        return OneFewer(self.inner.observe(outcome))


def test_a_policy_that_sends_one_token_fewer_is_slower():
    scenario = replace(EXACT, text=Independent(0.9), draft=StepTime(4.0), sessions=12)
    policy = Constant(16, 5)
    good = simulate(replace(scenario, policy=policy))
    bad = simulate(replace(scenario, policy=OneFewer(policy)))
    assert bad.ms_per_token > 1.05 * good.ms_per_token


def test_a_drafter_behind_a_longer_way_is_slower_than_one_at_hand():
    near = simulate(EXACT)
    assert simulate(replace(EXACT, drafter_hop_ms=40.0)).ms_per_token > near.ms_per_token


# --- kept branches --------------------------------------------------------------------


def test_the_more_branches_are_kept_the_faster_and_none_changes_nothing():
    scenario = replace(EXACT, pacing="eager", fallback=False, sessions=12, draft=StepTime(10.0))
    times = [
        simulate(replace(scenario, kept=KeptBranches(rate))).ms_per_token for rate in (0, 0.5, 1)
    ]
    assert times[0] > times[1] > times[2]
    assert times[0] == simulate(scenario).ms_per_token


def test_a_branch_holds_what_was_drafted_after_the_rejected_token():
    """Place 0 is wrong, and three more tokens stand behind it when the verdict comes."""
    scenario = replace(
        EXACT, policy=Constant(4, 4), text=Listed((False,)), sessions=1, tokens=12, hop_ms=0.0
    )
    without = Simulation(scenario)
    kept = Simulation(replace(scenario, kept=KeptBranches(1.0)))
    slow, fast = without.run(), kept.run()
    assert kept.ended_sessions[0].account.blocks == without.ended_sessions[0].account.blocks
    # Three tokens are there at once, and the six steps of 30 ms at rest are two more: the
    # second block has not to wait for its four tokens.
    assert slow.ms_per_token * 12 - fast.ms_per_token * 12 == pytest.approx(4 * 5.0)


def test_what_is_prepared_in_idle_time_alone_is_less():
    scenario = replace(EXACT, pacing="eager", fallback=False, sessions=12, draft=StepTime(10.0))
    beside = simulate(replace(scenario, kept=KeptBranches(1.0)))
    idle = simulate(replace(scenario, kept=KeptBranches(1.0, beside=False)))
    assert beside.ms_per_token < idle.ms_per_token <= simulate(scenario).ms_per_token


# --- parts ----------------------------------------------------------------------------


def test_messages_of_a_link_arrive_in_order_however_late():
    agenda, heard = Agenda(), []
    link = Link(agenda, 1.0, 20.0, Random(3))
    for number in range(50):
        agenda.after(0.2 * number, link.send, heard.append, number)
    agenda.run()
    assert heard == list(range(50))
    assert agenda.now >= 0.011


def test_a_step_costs_by_rows_and_sessions_or_by_its_table():
    times = StepTime(20.0, row_ms=1.0, session_ms=3.0, several_ms=25.0)
    assert [times.at(1, 1), times.at(2, 2), times.at(1, 4), times.at(2, 5)] == [20, 23, 28, 31]
    table = StepTime(0.0, table=((1, 10.0), (5, 30.0), (9, 32.0)))
    assert [table.at(1, n) for n in (1, 3, 5, 7, 13)] == [10, 20, 30, 31, 34]


@pytest.mark.parametrize(("rate", "length"), [(0.5, 6.0), (0.8, 10.0), (0.3, 2.0)])
def test_bursty_texts_are_right_as_often_as_said_in_runs_as_long_as_said(rate, length):
    places = Runs.bursty(rate, length).places(60_000, Random(1))
    ends = sum(a and not b for a, b in pairwise(places))
    assert sum(places) / len(places) == pytest.approx(rate, abs=0.02)
    assert sum(places) / ends == pytest.approx(length, rel=0.06)


def verdicts(*blocks: Verify, truth=(2, 4, 6, 8, 10, 12, 14)) -> tuple[list[Verdict], int]:
    """What a verifier answers to blocks that arrive together, and in how many forwards."""
    agenda, heard = Agenda(), []

    def deliver(_session, _kind, *what):
        heard.append(what[-1])

    verifier = SimulatedVerifier("v", agenda, StepTime(10.0), {"s": truth}, deliver)
    verifier.handle(OpenVerify("s", 1, 1, (0,), (), VerifyMode.GREEDY, ResolvedSampling(), 1, 8))
    for block in blocks:
        verifier.handle(block)
    agenda.run()
    return [verdict for verdict in heard if isinstance(verdict, Verdict)], verifier.forwards


def test_a_chained_block_loses_the_bonus_that_it_starts_with():
    first = Verify("s", 1, 1, 0, DraftTree((2, 4)))
    (one, two), forwards = verdicts(first, Verify("s", 1, 2, 2, DraftTree((6, 8)), extends_round=1))
    assert (one.token_ids, one.all_accepted, one.base_len) == ((2, 4, 6), True, 0)
    assert (two.token_ids, two.accepted, two.base_len) == ((8, 10), 1, 3)
    assert forwards == 2


def test_a_chained_block_behind_a_rejection_is_discarded_without_a_forward():
    first = Verify("s", 1, 1, 0, DraftTree((2, 5)))
    (one, two), forwards = verdicts(first, Verify("s", 1, 2, 2, DraftTree((6, 8)), extends_round=1))
    assert (one.token_ids, one.accepted) == ((2, 4), 1)
    assert two.discarded
    assert forwards == 1


def test_a_chained_block_that_differs_from_the_bonus_is_discarded():
    first = Verify("s", 1, 1, 0, DraftTree((2, 4)))
    (_, two), forwards = verdicts(first, Verify("s", 1, 2, 2, DraftTree((7, 8)), extends_round=1))
    assert two.discarded
    assert forwards == 1


# --- arrivals, prompts, gathering, and drafters beside their verifiers --------------------

PLAIN_ROUNDS = replace(EXACT, pacing="plain", plain_ahead=True, tokens=20)


def accounts_of(scenario: Scenario):
    """Of all sessions, in the order in which they were asked for."""
    simulation = Simulation(scenario)
    simulation.run()
    ended = sorted(simulation.ended_sessions, key=lambda session: int(session.name))
    return [session.account for session in ended]


def test_sessions_that_drift_apart_share_forwards_again_where_the_verifier_gathers():
    scenario = replace(
        PLAIN_ROUNDS, plain_ahead=False, sessions=4, concurrency=4, tokens=60, cpu_ms=0.3
    )
    assert simulate(scenario).ms_per_token > 1.8 * 30.0
    assert simulate(replace(scenario, gather_ms=50.0)).ms_per_token < 1.25 * 30.0


def test_a_plain_block_that_is_ahead_hides_the_round_trip():
    [account] = accounts_of(replace(PLAIN_ROUNDS, sessions=1))
    # Once, behind the block that goes with the opening, it is not hidden.
    assert account.decode_ms == pytest.approx(19 * 30.0 + 2.0)
    [waits] = accounts_of(replace(PLAIN_ROUNDS, sessions=1, plain_ahead=False))
    assert waits.decode_ms == pytest.approx(19 * 32.0)


def test_a_prompt_s_rows_make_its_forwards_longer_and_the_last_one_brings_the_first_token():
    prompts = Prompts(100, row_ms=0.5)
    [account] = accounts_of(replace(PLAIN_ROUNDS, sessions=1, prompts=prompts))
    # A hop there, one forward with all its rows, a hop back.
    assert account.first_ms == pytest.approx(1.0 + 30.0 + 100 * 0.5 + 1.0)
    assert account.decode_ms == pytest.approx(19 * 30.0 + 2.0)


def test_a_prompt_slows_the_others_by_no_more_than_the_served_share_of_their_steps():
    """A long prompt comes while another session decodes: `prefill_slowdown` is 1.75."""
    scenario = replace(
        PLAIN_ROUNDS, sessions=8, concurrency=2, tokens=100, spread=0.5,
        prompts=Prompts(1000, row_ms=1.0, every=2),
    )  # fmt: skip
    simulation = Simulation(scenario, record=True)
    simulation.run()
    steps = [
        event.verdict.verify_ms
        for session in simulation.ended_sessions
        for event, _ in session.account.turns
        if isinstance(event, VerdictArrived) and event.verdict.verify_ms > 1.1 * 30.0
    ]
    assert len(steps) > 30
    # Most; whoever came with the prompt, or after it, has no claim before it.
    assert 1.5 * 30.0 < quantile(steps, 0.5) < 2.0 * 30.0


def test_requests_come_at_their_rate_and_wait_in_line_beyond_what_is_served_at_a_time():
    open_ = replace(PLAIN_ROUNDS, sessions=400, tokens=2, arrivals_per_s=5.0, concurrency=400)
    accounts = accounts_of(open_)
    span = accounts[-1].asked - accounts[0].asked
    assert 399 / span == pytest.approx(5.0, rel=0.1)
    assert all(one.began == one.asked for one in accounts)
    crowded = accounts_of(replace(open_, concurrency=1, arrivals_per_s=40.0, sessions=40))
    served = [(one.began, one.finished) for one in crowded]
    assert all(before[1] <= after[0] for before, after in pairwise(served))
    assert crowded[-1].first_ms > 5 * crowded[0].first_ms


def test_those_that_arrive_go_where_the_fewest_are():
    """Two verifiers with two sessions at a time have one each, however they come and go."""
    scenario = replace(
        PLAIN_ROUNDS, sessions=30, arrivals_per_s=1000.0, concurrency=2, verifiers=2,
        verify=StepTime(30.0, session_ms=30.0), spread=0.9, plain_ahead=True,
    )  # fmt: skip
    for account in accounts_of(scenario):
        assert account.decode_ms <= 30.0 * (account.tokens - 1) + 2.0 + 1e-6


def test_lengths_spread_around_their_mean_and_the_first_ones_end_one_by_one():
    scenario = replace(PLAIN_ROUNDS, spread=0.5, sessions=200, concurrency=4, tokens=40)
    lengths = [one.tokens for one in accounts_of(scenario)]
    assert min(lengths[4:]) >= 20
    assert max(lengths) <= 60
    assert sum(lengths[4:]) / 196 == pytest.approx(40.0, rel=0.05)
    assert len(set(lengths[:4])) > 2


def test_a_drafter_beside_its_verifier_takes_turns_with_it():
    """Alone, the verifier waits for each draft, and nothing is drafted while it computes."""
    scenario = replace(
        EXACT, text=Independent(1.0), draft=StepTime(10.0), tokens=300, fallback=False,
        hop_ms=0.0, pacing="eager", sessions=1,
    )  # fmt: skip
    apart, beside = simulate(scenario), simulate(replace(scenario, beside=True))
    assert apart.ms_per_token == pytest.approx(10.0, rel=0.05)
    assert beside.ms_per_token > 1.4 * apart.ms_per_token
    assert beside.verifier_use + beside.drafter_use < 1.02


def test_each_session_s_drafter_is_on_the_node_of_its_verifier():
    scenario = replace(
        EXACT, beside=True, verifiers=3, drafters=3, sessions=12, concurrency=6, pacing="eager",
        arrivals_per_s=20.0,
    )  # fmt: skip
    simulation = Simulation(scenario, record=True)
    simulation.run()
    for session in simulation.ended_sessions:
        attached = [
            event for event, _ in session.account.turns if isinstance(event, WorkerAttached)
        ]
        numbers = {event.worker.rpartition("-")[2] for event in attached}
        assert len(attached) >= 2
        assert len(numbers) == 1
