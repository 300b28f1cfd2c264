"""Answers of JSON schemas through chaos: what is asked for, and how an answer is judged."""

import random

import pytest

from services.cluster.models import DEMO_HEAD
from services.contract.types import FormatKind, ResponseFormat
from services.engine.checkpoint.bundle import make_bundle
from services.engine.structure import Structures
from services.grammar.formats import problem
from testkit.chaos.forms import FORMS, MAX_TOKENS, MODEL_WAYS, Form, form_cases, ways_of
from testkit.chaos.listener import Listener
from testkit.chaos.run import departures, unlike_its_form
from tests.models import EOS_ID, VOCAB_SIZE, tiny_model, tiny_tokenizer

TOWN = FORMS[0]
RIGHT = '{"town": {"name": "Kiel", "at": {"north": 54, "east": 10}}}'
EVERY_FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


@pytest.fixture(scope="module")
def structures() -> Structures:
    return Structures(make_bundle(tiny_tokenizer(), tiny_model("llama")), VOCAB_SIZE)


@EVERY_FORM
def test_whatever_is_drawn_under_a_form_ends_by_itself_and_is_an_answer(
    form: Form, structures: Structures
):
    """Token by token, any that is allowed: longer texts than a model writes."""
    asked = ResponseFormat(FormatKind.JSON_SCHEMA, (form.text,))
    assert problem(asked) == ""
    for seed in range(3):
        rng, matcher, output = random.Random(seed), structures.matcher(asked), []
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
def test_what_is_no_answer_is_told_in_one_line(answer: str, why: str):
    assert TOWN.problem(RIGHT) == ""
    assert why in TOWN.problem(answer)


@pytest.mark.parametrize("draft", ["a draft model", DEMO_HEAD, ""])
def test_all_forms_meet_all_ways(draft: str):
    ways, flags = ways_of(draft)
    made = form_cases(5, ways)
    asked = {name for way in ways for name in way["method"].split(",")}
    assert asked == set(flags[1].split(",") if flags else ("ngram",))
    assert len(made) == len(FORMS) * len(ways)
    for form in FORMS:
        own = [case for case in made if case.prompt == form.prompt]
        assert [case.options | way for case, way in zip(own, ways, strict=True)] == [
            case.options for case in own
        ]


def judged(text: str | None, finish: str = "stop") -> list[str]:
    listener = Listener("chaos-00000", form_cases(0, MODEL_WAYS)[0])
    heard = listener.transcript
    heard.token_ids, heard.text, heard.finish_reason = [1, 2, 3], text, finish
    return [*departures(listener, heard), *unlike_its_form(listener)]


def test_an_answer_is_right_only_if_it_ended_by_itself_and_is_of_its_form():
    assert judged(RIGHT) == []
    assert "no JSON" in judged("{", "stop")[0]
    assert "its finish reason is length" in judged(RIGHT, "length")[0]
    assert "no end" in judged(None, "")[0]
