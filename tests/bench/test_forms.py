"""The bench of forms: what it asks for, how it judges an answer, what it counts."""

import json
import random
from collections import defaultdict

import pytest
from pydantic import TypeAdapter

from bench.journal import Records
from services.contract.formats import problem
from services.contract.types import FormatKind, ResponseFormat
from services.engine.checkpoint.bundle import make_bundle
from services.engine.structure import Structures
from testkit.chaos.listener import Listener
from testkit.structured.generations import HEAD_WAYS, MAX_TOKENS, MODEL_WAYS, NGRAM_WAYS, wanted
from testkit.structured.report import Sums, content, verdict
from testkit.structured.run import VERIFIER_KILLED, Ended, Struck, StructuredResult, _judged
from testkit.structured.schemas import FORMS, Form
from tests.models import EOS_ID, VOCAB_SIZE, tiny_model, tiny_tokenizer

TOWN = FORMS[0]
RIGHT = '{"town": {"name": "Kiel", "at": {"north": 54, "east": 10}}}'
EVERY_FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


@pytest.fixture(scope="module")
def structures() -> Structures:
    return Structures(make_bundle(tiny_tokenizer(), tiny_model("llama")), VOCAB_SIZE)


def schema(form: Form) -> ResponseFormat:
    return ResponseFormat(FormatKind.JSON_SCHEMA, (form.text,))


@EVERY_FORM
def test_every_form_can_be_asked_for(form):
    assert problem(schema(form)) == ""


@EVERY_FORM
def test_whatever_is_drawn_under_a_form_ends_by_itself_and_is_an_answer(form, structures):
    """Token by token, any that is allowed: longer texts than a model writes."""
    for seed in range(3):
        rng, matcher, output = random.Random(seed), structures.matcher(schema(form)), []
        while EOS_ID not in output:
            output.append(rng.choice(matcher.mask(()).nonzero()[0].tolist()))
            assert matcher.extend(output[-1:])
        assert form.early < len(output) <= MAX_TOKENS
        assert form.problem(tiny_tokenizer().decode(output[:-1])) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (RIGHT[:-1], "no JSON"),
        ('{"town": 1, "town": 2}', "a name comes twice"),
        ("[NaN]", "NaN is no JSON"),
        (RIGHT.replace("54", "91"), "91 is greater than"),
        (RIGHT.replace("Kiel", "Kiel on the Baltic"), "is too long"),
        (RIGHT.replace(', "east": 10', ""), "'east' is a required property"),
        (RIGHT.replace("10}", '10, "up": 3}'), "'up' was unexpected"),
    ],
)
def test_what_is_no_answer_is_told_in_one_line(answer, why):
    assert TOWN.problem(RIGHT) == ""
    assert why in TOWN.problem(answer)


@pytest.mark.parametrize(
    "ways", [MODEL_WAYS, HEAD_WAYS, NGRAM_WAYS], ids=["model", "head", "ngram"]
)
def test_all_forms_meet_all_ways_and_ways_that_promise_a_text_share_their_seeds(ways):
    turn = [wanted(number, 5, ways) for number in range(2 * len(FORMS) * len(ways))]
    once = turn[: len(turn) // 2]
    assert {(one.form.name, one.way) for one in once} == {
        (form.name, way) for form in FORMS for way in ways
    }
    seeds = defaultdict(set)
    for one in once:
        seeds[one.form.name, one.way.same_text].add(one.seed)
    assert all(len(own) == 1 for (_, same), own in seeds.items() if same)
    drawn = [one.seed for one in turn if not one.way.same_text]
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & {one.seed for one in turn if one.way.same_text}


def judged(text: str | None, finish: str = "stop") -> Ended:
    one = wanted(0, 0, MODEL_WAYS)
    listener = Listener("form-00000", one.case)
    listener.transcript.token_ids = [1, 2, 3]
    listener.transcript.text, listener.transcript.finish_reason = text, finish
    return _judged(one, listener, None, (), resumes=1)


def test_an_answer_is_right_only_if_it_ended_by_itself_and_is_of_its_form():
    assert judged(RIGHT).wrong == ()
    assert "no JSON" in judged("{", "stop").wrong[0]
    assert "its finish reason is length" in judged(RIGHT, "length").wrong[0]
    assert "no end" in judged(None, "").wrong[0]


def ended(number: int, *wrong: str) -> Ended:
    return Ended(number, "tuples", "auto model", "stop", 20, 12, 5, 1, 1, wrong)


def test_a_report_counts_every_generation_and_names_what_is_wrong():
    outcome = StructuredResult(
        [ended(0), Struck(VERIFIER_KILLED, 2), ended(1, "no JSON"), ended(2)], ["x"]
    )
    sums = Sums.of(outcome.ended)
    assert (sums.generations, sums.rejected, sums.valid) == (3, 21, 2)
    told = verdict(outcome)
    assert told.startswith("2 of 3 valid")
    assert "1 verifiers killed and 0 cut off, which met 2 generations" in told
    assert outcome.wrong == ["generation 1: no JSON", "x"]
    assert json.loads(json.dumps(content(outcome, 1.0)))["forms"]["tuples"]["valid"] == 2


def test_a_run_goes_on_where_its_journal_ends(tmp_path):
    kind = TypeAdapter(Ended | Struck)
    records = [ended(0), Struck(VERIFIER_KILLED, 1), ended(1, "no JSON")]
    first = Records(tmp_path / "journal", {"--seed": 0}, kind)
    assert first.known == []
    for record in records:
        first.add(record)
    assert Records(tmp_path / "journal", {"--seed": 0}, kind).known == records
