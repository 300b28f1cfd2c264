"""Masks of response formats: against every text that is allowed, and in any order of moves."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.types import FormatKind, FormatMarker, ResponseFormat
from services.engine.checkpoint.bundle import make_bundle
from services.engine.structure import KEPT_GRAMMARS, StructureError, Structures, TooCostly
from services.grammar.formats import MOST_CHARACTERS, problem
from services.grammar.spending import DRAFTS, OUTPUTS
from tests.answers import answer_schema, is_answer
from tests.models import EOS_ID, VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.tries import tries

OPTIONS = ("the drafter", "the drafters", "the target", "a", "élan", 'a "quote"\n', "0")
LONGEST = 8
ANSWER = answer_schema(LONGEST)


def choice(*options: str) -> ResponseFormat:
    return ResponseFormat(FormatKind.CHOICE, options)


def regex(expression: str) -> ResponseFormat:
    return ResponseFormat(FormatKind.REGEX, (expression,))


def schema(value: object) -> ResponseFormat:
    return ResponseFormat(FormatKind.JSON_SCHEMA, (json.dumps(value),))


def grammar(text: str) -> ResponseFormat:
    return ResponseFormat(FormatKind.GRAMMAR, (text,))


def tags(value: object) -> ResponseFormat:
    return ResponseFormat(FormatKind.STRUCTURAL_TAG, (json.dumps(value),))


def behind(wanted: ResponseFormat, text: str = "", ids: tuple[int, ...] = ()) -> ResponseFormat:
    return replace(wanted, start=FormatMarker(text, ids))


@pytest.fixture(scope="module")
def structures() -> Structures:
    return Structures(make_bundle(tiny_tokenizer(), tiny_model("llama")), VOCAB_SIZE)


@pytest.fixture(scope="module")
def pieces() -> list[bytes | None]:
    """The bytes of every token of byte-level BPE (Radford et al., 2019); None of special ones."""
    signs = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in signs]
    back = {chr(byte): byte for byte in signs}
    back |= {chr(256 + place): byte for place, byte in enumerate(others)}
    names = tiny_tokenizer().convert_ids_to_tokens(range(VOCAB_SIZE))
    special = set(tiny_tokenizer().all_special_ids)
    return [
        None if i in special or name is None else bytes(back[sign] for sign in name)
        for i, name in enumerate(names)
    ]


def allowed_by(options, text: bytes, pieces) -> set[int]:
    """What may follow `text` if the whole is to be one of the options."""
    wanted = [option.encode() for option in options]
    tokens = {
        token
        for token, piece in enumerate(pieces)
        if piece and any(option.startswith(text + piece) for option in wanted)
    }
    return tokens | ({EOS_ID} if text in wanted else set())


def is_open(options, text: bytes) -> bool:
    """Whether what follows `text` may begin in more than one way."""
    wanted = [option.encode() for option in options]
    return len({option[len(text) :][:1] for option in wanted if option.startswith(text)}) > 1


def ids(mask) -> set[int]:
    return set(mask.nonzero()[0].tolist())


@pytest.mark.parametrize("seed", range(12))
def test_a_choice_allows_just_what_leads_to_an_option(structures, pieces, seed):
    rng, matcher = random.Random(seed), structures.matcher(choice(*OPTIONS))
    text, output = b"", []
    while True:
        mask, allowed = ids(matcher.mask(())), allowed_by(OPTIONS, text, pieces)
        # What is bound to come is written as the tokenizer would write it.
        assert mask == allowed if is_open(OPTIONS, text) else mask and mask <= allowed
        token = rng.choice(sorted(mask))
        output.append(token)
        assert matcher.extend([token])
        if token == EOS_ID:
            break
        text += pieces[token]
    assert text.decode() in OPTIONS
    assert matcher.length == len(output)


AMBIGUOUS = grammar('start: a\na: a a | "a"')
"""Takes time with the cube of its text, and limits of items hold it up after a thousand tokens."""
A = 67


class Ticking:
    """CPU time that passes in equal bits, one each time that it is read."""

    def __init__(self, tick: float) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def charged(tick: float) -> Structures:
    bundle = make_bundle(tiny_tokenizer(), tiny_model("llama"))
    return Structures(bundle, VOCAB_SIZE, clock=Ticking(tick))


def test_an_output_that_takes_more_time_than_it_may_ends():
    each, reserve = OUTPUTS
    matcher = charged(2 * each).matcher(AMBIGUOUS)

    def go_on() -> None:
        for _ in range(1000):
            matcher.mask(())
            assert matcher.extend([A])

    with pytest.raises(TooCostly, match="more CPU time"):
        go_on()
    assert matcher.length == int(reserve / each) // 2


def test_a_mask_may_be_made_in_another_thread_and_is_made_once():
    matcher, plain = charged(1e-3).matcher(AMBIGUOUS), charged(1e-3).matcher(AMBIGUOUS)
    for path in ((), (A,), (A + 1,)):
        making = Thread(target=matcher.prepare)
        making.start()
        making.join()
        spent = matcher.spending.seconds
        assert np.array_equal(matcher.mask(()), plain.mask(()))
        assert matcher.spending.seconds == spent
        found, expected = matcher.mask(path), plain.mask(path)
        assert (found is None) == (expected is None)
        assert found is None or np.array_equal(found, expected)
        assert matcher.extend([A])
        assert plain.extend([A])
    matcher.prepare()
    matcher.rewind(0)
    plain.rewind(0)
    assert np.array_equal(matcher.mask(()), plain.mask(()))
    assert not np.array_equal(matcher.mask(()), matcher.mask((A,)))


def test_a_draft_that_takes_more_time_than_it_may_is_made_without_its_format():
    each, _ = DRAFTS
    matcher = charged(2 * each).matcher(AMBIGUOUS, lenient=True)
    while not matcher.spending.over:
        assert matcher.mask(()) is not None
        assert matcher.extend([A])
    assert matcher.mask(()) is None
    assert not matcher.extend([A])
    length = matcher.length
    matcher.rewind(1)
    assert (matcher.length, length > 10) == (1, True)


def test_a_long_text_is_followed_for_a_time_and_then_further():
    matcher, steps = charged(1e-3).matcher(AMBIGUOUS), []
    text = [A] * 40
    while matcher.length < len(text):
        before = matcher.length
        assert matcher.advance(text[before:], 10e-3)
        steps.append(matcher.length - before)
    # Three readings a token: of the text's time and, before and after, of the token's.
    assert set(steps[:-1]) == {4}
    assert not matcher.advance([A + 1], 1.0)


def test_a_text_that_was_walked_as_a_draft_is_taken_as_it_is():
    matcher = charged(1e-3).matcher(AMBIGUOUS)
    matcher.mask([A] * 8)
    spent = matcher.spending.seconds
    assert matcher.advance([A] * 8, 1.0)
    assert (matcher.length, matcher.spending.seconds) == (8, spent)
    matcher.mask([A] * 8)
    walked = matcher.spending.seconds
    assert matcher.extend([A] * 9)
    assert matcher.spending.seconds == pytest.approx(walked + 1e-3), "one token is new"


@pytest.mark.parametrize(
    "wanted",
    [
        schema({"type": "array", "items": ANSWER}),
        grammar('start: (x ";")+\nx: y ("+" y)*\ny: z ("*" z)*\nz: N | "(" x ")"\nN: /[0-9]{1,3}/'),
        regex(r"([A-Za-z]{1,12}[ ,.]){1,5000}"),
    ],
    ids=["schema", "grammar", "regex"],
)
def test_usual_formats_take_a_small_part_of_what_they_may(structures, wanted):
    """After 4000 tokens, masks included."""
    rng, matcher, calls = random.Random(1), structures.matcher(wanted), 0
    while matcher.length < 4000:
        assert matcher.extend([rng.choice(sorted(ids(matcher.mask(())) - {EOS_ID}))])
        calls += 2
        if matcher.must_end(()):
            matcher.rewind(matcher.length - 1)
    assert not matcher.spending.over
    assert matcher.spending.seconds < 0.1 * calls * OUTPUTS.each


PAIRS = regex(r"(ab|ba)*c[0-9]{2,4}")
CALLS = {
    "structures": [{"begin": "a<", "schema": {"enum": [1, 22]}, "end": ">"}],
    "triggers": ["a<"],
}
SIGNS = [67, 68, 69, 30, 32, 19, EOS_ID]
"""a, b, c, <, >, 1 and the end."""
MOVED = {
    "from the first token": PAIRS,
    "behind a text": behind(PAIRS, "aba"),
    "behind tokens": behind(PAIRS, ids=(68, 69)),
    "a grammar": grammar('start: x "c" y\nx[lazy]: /[ab]*/ "b"\ny[suffix=">"]: /[0-9]*/'),
    "tags": tags(CALLS),
}


@pytest.mark.parametrize("wanted", MOVED.values(), ids=MOVED)
@tries(60)
@given(st.data())
def test_masks_do_not_depend_on_the_moves_that_led_to_them(structures, wanted, data):
    """Draft paths that are walked, kept in part and taken back leave no trace."""
    matcher, output = structures.matcher(wanted), []
    for _ in range(data.draw(st.integers(1, 8))):
        path: list[int] = []
        for _ in range(data.draw(st.integers(0, 4))):
            mask = matcher.mask(path)
            likely = SIGNS if mask is None else sorted(ids(mask))
            path.append(data.draw(st.sampled_from(likely) | st.sampled_from(SIGNS)))
        fresh = structures.matcher(wanted)
        assert fresh.extend(output)
        mine, other = matcher.mask(path), fresh.mask(path)
        assert (mine is None) == (other is None)
        assert mine is None or (mine == other).all()
        assert matcher.must_end(path) == fresh.must_end(path)
        if data.draw(st.booleans()):
            kept = path[: data.draw(st.integers(0, len(path)))]
            taken = matcher.extend(kept)
            assert taken == fresh.extend(kept)
            output += kept if taken else []
        elif output and data.draw(st.booleans()):
            output = output[: data.draw(st.integers(0, len(output)))]
            matcher.rewind(len(output))


def test_text_is_free_up_to_its_marker_and_of_the_format_from_the_next_token(structures, pieces):
    """However the marker is cut into tokens, and whatever else its last one holds."""
    known = {piece: token for token, piece in enumerate(pieces) if piece}
    after, he, ad, a = known[b"after"], known[b"he"], known[b"ad"], known[b"a"]
    first = ids(structures.matcher(choice("yes", "no")).mask(()))
    for marker, text in (
        ("head", (he, ad)),
        ("head", (he, he, ad)),
        ("hea", (he, ad)),
        ("head", (he, a, known[b"d"])),
        ("after", (after,)),
        ("ftera", (after, ad)),
        ("<|im_start|>", (0,)),
        ("a<|im_start|>", (a, 0)),
    ):
        matcher = structures.matcher(behind(choice("yes", "no"), marker))
        for place in range(len(text)):
            assert matcher.mask(text[:place]) is None
            assert not matcher.must_end(text[:place])
        assert ids(matcher.mask(text)) == first
        assert matcher.extend(text)
        assert ids(matcher.mask(())) == first
        assert not matcher.extend([he])


def test_a_marker_of_tokens_is_those_tokens_and_no_others_of_the_same_text(structures, pieces):
    known = {piece: token for token, piece in enumerate(pieces) if piece}
    he, h, e = known[b"he"], known[b"h"], known[b"e"]
    matcher = structures.matcher(behind(regex("a"), ids=(h, h, e)))
    assert matcher.mask((he, h, e, h, h, he)) is None
    assert ids(matcher.mask((he, h, e, h, h, h, e))) == {known[b"a"]}


def test_a_text_may_end_before_its_marker_and_has_no_form_then(structures):
    matcher = structures.matcher(behind(regex("a"), "head"))
    assert matcher.extend([7, EOS_ID, 8])
    assert matcher.mask(()) is None
    matcher.rewind(1)
    assert matcher.mask(()) is None
    assert not matcher.must_end(())


def test_formats_that_begin_elsewhere_share_what_is_compiled(structures):
    compiled = structures.compiled(regex("ab"))
    assert structures.compiled(behind(regex("ab"), "x")) is compiled


def test_a_path_that_is_not_allowed_has_no_mask_and_changes_nothing(structures):
    matcher = structures.matcher(choice("yes", "no"))
    before = ids(matcher.mask(()))
    forbidden = next(token for token in range(3, VOCAB_SIZE) if token not in before)
    assert matcher.mask((forbidden,)) is None
    assert matcher.mask((forbidden, forbidden)) is None
    assert not matcher.extend([forbidden])
    assert matcher.length == 0
    assert ids(matcher.mask(())) == before


def test_the_end_comes_when_nothing_else_can(structures, pieces):
    matcher = structures.matcher(regex("a"))
    [letter] = ids(matcher.mask(()))
    assert pieces[letter] == b"a"
    assert not matcher.must_end(())
    assert matcher.must_end((letter,))
    assert ids(matcher.mask((letter,))) == {EOS_ID}


def test_behind_the_end_anything_goes_and_can_be_taken_back(structures):
    matcher = structures.matcher(regex("a"))
    [letter] = ids(matcher.mask(()))
    assert matcher.mask((letter, EOS_ID)) is None
    assert matcher.mask((letter, EOS_ID, 7)) is None
    assert matcher.extend([letter, EOS_ID, 7, 8])
    assert matcher.mask(()) is None
    matcher.rewind(1)
    assert ids(matcher.mask(())) == {EOS_ID}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_drawn_under_a_schema_is_json_of_that_schema(structures, seed):
    rng, matcher, output = random.Random(seed), structures.matcher(schema(ANSWER)), []
    while not (output and output[-1] == EOS_ID):
        output.append(rng.choice(sorted(ids(matcher.mask(())))))
        assert matcher.extend(output[-1:])
    assert is_answer(json.loads(tiny_tokenizer().decode(output[:-1])), LONGEST)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (ResponseFormat(FormatKind.JSON_SCHEMA, ("{",)), "line 1"),
        (ResponseFormat(FormatKind.JSON_SCHEMA, ("[]",)), "an object"),
        (schema(False), "an object, or true"),
        (schema({"uniqueItems": True}), "uniqueItems"),
        (ResponseFormat(FormatKind.JSON_SCHEMA, ("",)), "empty"),
        (schema({"type": "secretive"}), "type"),
        (schema({"$ref": "#/nowhere"}), "nowhere"),
        (regex("(a"), "regex"),
        (grammar("start: a"), "a"),
        (grammar("root ::= a"), "not found"),
        (grammar("once upon a time"), "Expected"),
        (grammar('start: <|unheard_of|> "a"'), "unknown special token"),
        (grammar("root ::= " + "(" * 5000 + '"a"' + ")" * 5000), "recursion"),
        (grammar("start: x\nx[max_tokens=2]: /a+/"), "max_tokens"),
        (grammar('start: x\nx[stop="b"]: /[ab]+/'), "stop"),
        (grammar("x" * (MOST_CHARACTERS[FormatKind.GRAMMAR] + 1)), "more than"),
        (tags([]), "a JSON object"),
        (tags({}), "structures"),
        (
            tags({"structures": [{"begin": "a", "end": "b", "schema": 1}], "triggers": ["a"]}),
            "schema",
        ),
        (tags(CALLS | {"triggers": []}), "triggers"),
        (tags(CALLS | {"triggers": ["b"]}), "none of the triggers"),
        (tags({"format": {"type": "poem"}}), "'poem' is none of"),
        (tags({"format": {"type": "any_text", "excludes": ["a"]}}), "excludes"),
        (tags({"format": {"type": "star", "content": {"type": "any_text"}}}), "free text"),
        (regex(""), "empty"),
        (regex("a" * (MOST_CHARACTERS[FormatKind.REGEX] + 1)), "more than"),
        (schema({"enum": ["x" * MOST_CHARACTERS[FormatKind.JSON_SCHEMA]]}), "more than"),
        (choice(), "empty"),
        (choice("a", ""), "empty"),
        (choice(*map(str, range(2000))), "options, more than"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused_with_the_reason(structures, wanted, why):
    told = problem(wanted)
    assert told
    assert why in told
    assert "\n" not in told
    if why not in ("empty", "more than", "options, more than"):
        with pytest.raises(StructureError):
            structures.matcher(wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        schema(ANSWER),
        schema({}),
        schema(True),
        regex("[a-z]+"),
        choice("a", "b"),
        grammar("start: /[a-z]+/"),
        grammar('root ::= "a" | "b" root'),
        tags(CALLS),
        tags({"format": {"type": "any_text"}}),
    ],
)
def test_a_format_that_can_be_used_has_no_problem(structures, wanted):
    assert problem(wanted) == ""
    assert structures.matcher(wanted).mask(()).any()


def test_whitespace_between_the_parts_of_json_has_an_end(structures, pieces):
    matcher, blanks = structures.matcher(schema({"type": "object"})), 0
    [brace] = [token for token, piece in enumerate(pieces) if piece == b"{"]
    [blank] = [token for token, piece in enumerate(pieces) if piece == b" "]
    assert matcher.extend([brace])
    while blank in ids(matcher.mask(())):
        assert matcher.extend([blank])
        blanks += 1
    assert 8 < blanks < 80


def test_what_a_worker_says_of_a_format_quotes_nothing(structures):
    secret = "hunter2"
    for wanted in (schema({"properties": {secret: {"type": secret}}}), regex(f"({secret}")):
        with pytest.raises(StructureError) as raised:
            structures.matcher(wanted)
        assert secret not in str(raised.value)
        assert raised.value.__cause__ is None


def test_only_the_last_formats_stay_compiled(structures):
    for number in range(KEPT_GRAMMARS + 8):
        structures.matcher(choice(f"option {number}"))
    assert len(structures._compiled) == KEPT_GRAMMARS
