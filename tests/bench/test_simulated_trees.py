"""The default trees in exact time, on texts: the served drafter, its pacing, and the ideal."""

import json
import sys
from dataclasses import replace
from itertools import accumulate
from random import Random

import pytest

from bench.simulation import Scenario, Simulation, StepTime, __main__, simulate
from bench.simulation.agenda import Agenda
from bench.simulation.chained import judged, walked
from bench.simulation.ideal import ideal
from bench.simulation.recorded import RecordedText, read_texts, write_texts
from bench.simulation.round_kinds import RoundKind
from bench.simulation.scenario import PLAIN
from bench.simulation.served import (
    ALL,
    SOURCES,
    VERIFY,
    Row,
    scenario_of,
    served,
    sources_of,
)
from bench.simulation.tree_drafter import TreeDrafter, TreeDrafts
from bench.simulation.verifier import SimulatedVerifier
from orchestrator.core.events import DraftArrived, WorkerOpened
from orchestrator.core.pacing import Marginal
from services.contract.errors import StartError
from services.contract.types import DraftTree, OpenDraft, ResolvedSampling, Verify, VerifyMode
from services.engine.ngram_file import FIRSTS, Laws, NgramFile, code_of, extend_key, support_of

VOCAB = 64
FREE = StepTime(20.0)
"""A row more costs nothing."""
DEAR = StepTime(20.0, table=((1, 20.0), (2, 60.0), (3, 100.0)))
TREE = DraftTree((5, 6, 7, 8, 9), (-1, -1, 0, 0, 3))


def copied(category: str = "copy", length: int = 30) -> RecordedText:
    """Its answer repeats its prompt."""
    words = tuple(range(length))
    return RecordedText(category, words, words)


def shuffled(seed: int, category: str = "chance", length: int = 40) -> RecordedText:
    """Nobody can know what comes next."""
    random = Random(seed)
    prompt, answer = (tuple(random.randrange(VOCAB) for _ in range(length)) for _ in range(2))
    return RecordedText(category, prompt, answer)


TEXTS = (copied(), shuffled(1), copied("copy", 22), shuffled(2))


def a_file() -> NgramFile:
    """After each token, by itself and in texts, comes the next number."""
    ids, codes = [0] * VOCAB * FIRSTS, bytearray(VOCAB * FIRSTS)
    for token in range(VOCAB - 1):
        ids[token * FIRSTS], codes[token * FIRSTS] = token + 1, code_of(0.5)
    keys = sorted((extend_key(0, token), token) for token in range(VOCAB - 1))
    laws = Laws(
        [key for key, _ in keys],
        bytes([support_of(64)]) * len(keys),
        list(accumulate([1] * len(keys), initial=0)),
        [token + 1 for _, token in keys],
        bytes([code_of(0.9)]) * len(keys),
    )
    weights = {"greedy.first_code": 1.0, "greedy.law1_code": 3.0, "greedy.other_file": 2.5}
    return NgramFile("t", "", "fp", VOCAB, ids, bytes(codes), (laws,), weights)


def opening(text: RecordedText, session: str = "s") -> OpenDraft:
    sampling = ResolvedSampling(temperature=0.0, max_tokens=len(text.answer))
    return OpenDraft(session, 1, text.prompt, (), VerifyMode.GREEDY, sampling, 0, 8, 8)


def told(seed: int, file: NgramFile | None, length: int = 60) -> RecordedText:
    """A text that is drawn by the drafter's own chances: they are true in it."""
    random, trees = Random(seed), TreeDrafts((), file).trees()
    answer: list[int] = []
    session = trees.open(opening(RecordedText("", (seed,), (0,) * length)), "")
    for place in range(length):
        session.follow((seed, *answer))
        proposed = session.draft(place, 1)
        tokens = (*proposed.tree.token_ids, random.randrange(VOCAB - 1))
        chances = (*proposed.reach, max(0.0, 1.0 - sum(proposed.reach)))
        answer += random.choices(tokens, chances)
    return RecordedText("told", (seed,), tuple(answer))


def scenario(*texts: RecordedText, **changes) -> Scenario:
    trees = TreeDrafts(texts or TEXTS)
    return replace(Scenario(trees=trees, verify=VERIFY, sessions=len(trees.texts)), **changes)


# --- the verifier ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "path", "whole"),
    [
        ((4, 1), (), False),
        ((5, 1), (0,), False),
        ((6, 1), (1,), True),
        ((5, 7, 1), (0, 2), True),
        ((5, 8, 9, 1), (0, 3, 4), True),
        ((5, 8), (0, 3), False),
        ((5, 8, 9), (0, 3, 4), True),
    ],
)
def test_a_tree_is_accepted_down_to_the_first_token_that_is_not_the_target_s(own, path, whole):
    assert walked(TREE, own) == (path, whole)
    verdict = judged(Verify("s", 1, 1, 0, TREE), 0, TREE.token_ids, own)
    assert (verdict.accepted_nodes, verdict.accepted) == (path, len(path))
    assert (verdict.all_accepted, verdict.token_ids) == (whole, own[: len(path) + 1])


# --- the text and the run -------------------------------------------------------------


@pytest.mark.parametrize("verify", [VERIFY, FREE, DEAR])
@pytest.mark.parametrize("file", [None, a_file()])
def test_every_session_says_what_the_target_wrote(verify, file):
    drafts = TreeDrafts((*TEXTS, copied(length=1), copied(length=2)), file)
    simulation = Simulation(Scenario(trees=drafts, verify=verify, sessions=6, concurrency=2))
    assert simulation.run().tokens == sum(len(text.answer) for text in drafts.texts)
    for session in simulation.ended_sessions:
        assert session.state.committed == drafts.text(session.name).answer


def test_a_verifier_that_takes_a_wrong_branch_is_found_out(monkeypatch):
    honest = SimulatedVerifier._judged

    def lenient(self, task, started):
        verdict, tree = honest(self, task, started), task.block.tree
        if verdict.accepted or tree.is_chain:
            return verdict
        return verdict._replace(
            token_ids=(tree.token_ids[0], *verdict.token_ids), accepted=1, accepted_nodes=(0,)
        )

    monkeypatch.setattr(SimulatedVerifier, "_judged", lenient)
    with pytest.raises(AssertionError, match="not the target's own"):
        simulate(scenario(verify=FREE))


def test_the_same_scenario_is_the_same_run_and_a_later_tree_another():
    once = simulate(scenario())
    assert simulate(scenario()) == once
    slower = replace(TreeDrafts(TEXTS), build_ms=2.0)
    assert simulate(scenario(trees=slower)).ms_per_token > once.ms_per_token


def test_sessions_are_served_as_by_default_and_learn_nothing_of_each_other_s_hits():
    simulation = Simulation(scenario(copied(), copied()))
    simulation.run()
    first, second = simulation.ended_sessions
    assert isinstance(second.beginning.policy, Marginal)
    assert second.beginning.policy.learned.costs.known
    assert first.state.policy.learned.ranges != second.beginning.policy.learned.ranges
    assert second.beginning.policy.learned.ranges == first.beginning.policy.learned.ranges
    config = first.beginning.config
    assert config.estimated
    assert config.plain_ahead
    assert (config.window, config.num_candidates) == (8, 8)


def test_the_first_round_goes_with_the_opening_and_holds_no_draft():
    simulation = Simulation(scenario(copied(), verify=FREE))
    simulation.run()
    (session,) = simulation.ended_sessions
    account = session.account
    assert (account.blocks[0], account.kinds.total()) == ((0, 0), account.rounds - 1)
    assert account.first == pytest.approx(account.opened + 1e-3 * Scenario().persist_ms)


def test_what_arrives_while_a_tree_is_built_waits_for_its_end():
    agenda, heard = Agenda(), []

    def deliver(session, kind, *_what):
        heard.append((round(1e3 * agenda.now, 6), session, kind))

    drafter = TreeDrafter("d", agenda, TreeDrafts((), build_ms=4.0), deliver)
    agenda.after(0.0, drafter.handle, opening(copied(), "a"))
    agenda.after(1.0, drafter.handle, opening(copied(), "b"))
    agenda.run()
    assert heard == [
        (0.0, "a", WorkerOpened),
        (4.0, "a", DraftArrived),
        (4.0, "b", WorkerOpened),
        (8.0, "b", DraftArrived),
    ]


# --- where it goes --------------------------------------------------------------------


def row_of(*texts: RecordedText, verify=VERIFY, **changes) -> Row:
    trees = TreeDrafts(texts, changes.pop("file", None), changes.pop("build_ms", 0.3))
    return served(replace(scenario_of(trees), verify=verify, **changes))[-1]


def test_shares_are_one_in_all_and_categories_come_before_all():
    rows = served(scenario_of(TreeDrafts(TEXTS, a_file())))
    assert [row.category for row in rows] == ["copy", "chance", ALL]
    assert rows[-1].tokens == sum(row.tokens for row in rows[:-1])
    for row in rows:
        assert sum(row.shares.values()) == pytest.approx(1.0)
        assert set(row.shares) == {kind.value for kind in RoundKind}
        assert 0.0 <= row.wait_ms <= row.outside_ms


def test_a_text_that_is_copied_is_written_faster_and_one_of_chance_is_hardly_slower():
    copy, chance, _ = served(scenario_of(TreeDrafts(TEXTS)))
    assert copy.tokens_a_round > 3.0
    assert copy.speed_up > 2.0
    assert chance.tokens_a_round < 1.1
    assert 0.9 < chance.speed_up < 1.05


def test_where_rows_are_dear_the_drafter_rests_unless_it_must_not():
    dear = row_of(shuffled(1), shuffled(2), shuffled(3), verify=DEAR)
    assert dear.shares[RoundKind.RESTED.value] > 0.5
    awake = row_of(shuffled(1), shuffled(2), shuffled(3), verify=DEAR, fallback=False)
    assert awake.shares[RoundKind.RESTED.value] == 0.0
    assert row_of(copied(), verify=FREE).shares[RoundKind.RESTED.value] == 0.0


def test_where_nothing_is_known_the_drafter_has_nothing_and_what_is_never_true_does_not_pay():
    awake = row_of(RecordedText("new", (63,), tuple(range(40))), verify=FREE, fallback=False)
    assert awake.shares[RoundKind.NOTHING.value] == pytest.approx(38 / 39)
    assert awake.shares[RoundKind.LAST.value] == pytest.approx(1 / 39)
    wrong = row_of(shuffled(1), shuffled(2), verify=DEAR, file=a_file(), fallback=False)
    assert wrong.shares[RoundKind.UNPAID.value] > 0.5


def test_a_tree_that_takes_longer_than_half_a_round_comes_late():
    assert row_of(copied(), build_ms=40.0).shares[RoundKind.LATE.value] > 0.1
    assert row_of(copied(), build_ms=0.3).shares[RoundKind.LATE.value] == 0.0


def test_a_round_that_waits_for_a_tree_waits_for_its_building_two_hops_and_an_event():
    row = row_of(copied(length=200), verify=FREE, hop_ms=0.5, build_ms=1.0, cpu_ms=0.0)
    assert row.wait_ms == pytest.approx(1.0 + 2 * 0.5, rel=0.05)
    assert row.outside_ms == pytest.approx(1.0 + 4 * 0.5, rel=0.05)


def test_a_file_drafts_where_the_text_says_nothing_and_its_parts_can_be_left_out():
    file = a_file()
    text = RecordedText("count", (63,), tuple(range(40)))
    tokens = [
        row_of(text, verify=FREE, file=sources_of(file, name)).tokens_a_round for name in SOURCES
    ]
    assert tokens[0] == 1.0
    assert 1.0 < tokens[1] < tokens[2]


# --- the ideal ------------------------------------------------------------------------


@pytest.mark.parametrize("file", [None, a_file()])
@pytest.mark.parametrize("verify", [VERIFY, FREE, DEAR])
def test_where_chances_are_true_what_is_served_is_no_faster_than_the_ideal(verify, file):
    """But for noise; where they are not, it learns how far they are, and the ideal does not."""
    row = row_of(*[told(seed, file) for seed in range(8)], verify=verify, file=file)
    assert row.ideal_speed_up >= 0.99 * row.speed_up
    assert row.ideal_speed_up >= 1.0


def test_no_constant_size_of_the_trees_beats_the_ideal():
    file = a_file()
    texts, drafts = [told(seed, file) for seed in range(8)], TreeDrafts((), file)
    best = sum(ideal(text, drafts, drafts.trees(), VERIFY).ms for text in texts)
    for nodes in range(1, 13):
        constant = replace(drafts, nodes=nodes)
        found = [ideal(text, constant, constant.trees(), FREE) for text in texts]
        assert best <= sum(one.rounds for one in found) * VERIFY.at(1, 1 + nodes)


@pytest.mark.parametrize(("two_rows_ms", "pays"), [(30.0, True), (38.0, False)])
def test_a_node_of_the_ideal_pays_where_its_chance_is_more_than_its_time_is_worth(
    two_rows_ms, pays
):
    """The chance is .8, and the pace 2 tokens in two rows' time."""
    drafts = TreeDrafts((), a_file(), nodes=1)
    verify = StepTime(20.0, table=((1, 20.0), (2, two_rows_ms)))
    found = ideal(RecordedText("count", (63,), tuple(range(40))), drafts, drafts.trees(), verify)
    assert found.nodes == (19 if pays else 0)
    assert found.rounds == (20 if pays else 39)


def test_the_last_token_of_the_ideal_is_decoded_plainly():
    drafts = TreeDrafts((), a_file())
    assert ideal(copied(length=2), drafts, drafts.trees(), FREE).nodes == 0


def test_the_ideal_of_a_perfect_copy_takes_whole_trees_and_one_of_chance_none_that_loses():
    drafts = TreeDrafts(TEXTS)
    copy = ideal(copied(length=100), drafts, drafts.trees(), FREE)
    assert copy.tokens == 99
    assert copy.rounds < 20
    assert copy.ms == copy.rounds * 20.0
    chance = ideal(shuffled(1), drafts, drafts.trees(), DEAR)
    assert (chance.rounds, chance.nodes) == (chance.tokens, 0)


def test_without_hops_waits_and_rests_the_served_are_near_the_ideal():
    file = a_file()
    texts = [told(seed, file) for seed in range(8)]
    free = {"hop_ms": 0.0, "cpu_ms": 0.0, "persist_ms": 0.0, "build_ms": 0.0, "fallback": False}
    near, far = row_of(*texts, file=file, **free), row_of(*texts, file=file)
    assert near.outside_ms == pytest.approx(0.0, abs=1e-6)
    assert near.speed_up == pytest.approx(near.ideal_speed_up, rel=0.05)
    assert far.speed_up < near.speed_up


def test_a_text_of_one_token_has_nothing_to_speed_up():
    row = row_of(copied(length=1))
    assert (row.tokens_a_round, row.speed_up, row.ideal_speed_up) == (1.0, 0.0, 0.0)


# --- the file and the command ---------------------------------------------------------


def file_of(tmp_path, *texts: RecordedText):
    path = tmp_path / "texts.jsonl"
    write_texts(path, texts)
    return path


def test_texts_are_read_as_they_were_written(tmp_path):
    assert read_texts(file_of(tmp_path, *TEXTS), VOCAB) == TEXTS


LINE = {"category": "qa", "prompt": [1], "answer": [2]}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "has no text"),
        ("{", "line 1 is not a JSON object with category, prompt and answer"),
        ("[]", "line 1 is not a JSON object"),
        ({**LINE, "category": 3}, "line 1 is not a JSON object"),
        ({**LINE, "prompt": "abc"}, "line 1 is not a JSON object"),
        ({**LINE, "answer": [1.5]}, "line 1 is not a JSON object"),
        ({**LINE, "answer": [True]}, "line 1 is not a JSON object"),
        ({**LINE, "answer": [-1]}, "line 1 is not a JSON object"),
        ({**LINE, "answer": []}, "line 1 needs a token of the prompt and one of the answer"),
        ({**LINE, "prompt": []}, "line 1 needs a token of the prompt and one of the answer"),
        ({**LINE, "answer": [VOCAB]}, "line 1: token 64 is beyond a vocabulary of 64"),
    ],
)
def test_a_file_that_has_no_texts_is_refused_with_a_sentence(tmp_path, line, complaint):
    path = tmp_path / "texts.jsonl"
    path.write_text(line if isinstance(line, str) else json.dumps(line))
    with pytest.raises(StartError, match=complaint) as refused:
        read_texts(path, VOCAB)
    assert str(refused.value).startswith(f"--recorded: {path}")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(StartError, match="cannot be read"):
        read_texts(tmp_path / "nowhere")
    with pytest.raises(StartError, match="cannot be written"):
        write_texts(tmp_path / "no" / "where", TEXTS)


def run(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["simulation", *map(str, arguments)])
    return __main__.main()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--sources", "tenant"), "--sources: 'tenant' is not one of text, firsts, file"),
        (("--ngrams", "none", "--sources", "file"), "--sources: file needs --ngrams"),
        (("--ngrams", "nowhere.bin"), "ngrams: nowhere.bin: No such file"),
        (("--ngrams", "none", "--depth", "0"), "--depth: 0 is not between 1 and 64"),
        (("--ngrams", "none", "--nodes", "99"), "--nodes: 99 is not between 1 and 64"),
        (("--ngrams", "none", "--build-ms", "-1"), "--build-ms: -1 is not between 0 and 10000"),
        (("--ngrams", "none", "--hop-ms", "nan"), "--hop-ms: nan is not between 0 and 10000"),
        (("--ngrams", "none", "--verify-table", "3"), "--verify-table: '3' is no list of ROWS:MS"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(
    monkeypatch, capsys, tmp_path, arguments, complaint
):
    assert run(monkeypatch, "--recorded", file_of(tmp_path, copied()), *arguments) == 1
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


def test_the_table_is_printed_and_written(monkeypatch, capsys, tmp_path):
    out = tmp_path / "rows.json"
    arguments = ("--recorded", file_of(tmp_path, *TEXTS), "--ngrams", "none", "--json", out)
    assert run(monkeypatch, *arguments) == 0
    printed = capsys.readouterr().out
    assert "outside ms" in printed
    assert "chance" in printed
    assert [Row(**row) for row in json.loads(out.read_text())["text"]] == served(
        scenario_of(TreeDrafts(TEXTS))
    )


def test_plain_decoding_asks_for_no_drafter():
    report = simulate(scenario(pacing=PLAIN))
    assert (report.drafted, report.sent) == (0, 0)
    assert report.tokens_per_round == 1.0
