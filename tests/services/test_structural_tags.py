"""Structural tags, in both ways to write them: what each allows, letter by letter."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from services.contract.types import FormatKind, ResponseFormat
from services.grammar.formats import LIMITS, _Bytes, check, grammar, named_in

SPECIAL = ("<call>", "</call>")
NUMBER = {"type": "json_schema", "json_schema": {"enum": [1, 22]}}
SCHEMA = {"enum": [1, 22]}
TAG = {"begin": "<f=a>", "content": NUMBER, "end": "</f>"}
CALL = {"begin": "<call>{", "content": NUMBER, "end": "}</call>"}
OTHER = {"begin": "<f=b>", "content": {"type": "const_string", "value": "x"}, "end": "</f>"}
ANY = {"type": "any_text"}
ANYTHING = {"type": "regex", "pattern": ".*"}
WORD = {"type": "regex", "pattern": "[a-z]+"}


def triggered(*tags, triggers=("<f",), **more):
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **more}


def structures(*tags, triggers):
    own = [{"begin": t["begin"], "schema": SCHEMA, "end": t["end"]} for t in tags]
    return {"type": "structural_tag", "structures": own, "triggers": triggers}


def formed(value):
    return {"type": "structural_tag", "format": value}


THOUGHT = {
    "type": "sequence",
    "elements": [{"type": "tag", "begin": "<t>", "content": ANY, "end": "</t>"}, NUMBER],
}
CASES = [
    (
        structures(TAG, triggers=["<f"]),
        ["", "hi", "hi <f=a>1</f> yo", "<f=a>22</f><f=a>1</f>"],
        ["<f", "<f=c>", "<f=a>3", "<f=a>1</f><f", "<call>"],
    ),
    (structures(CALL, triggers=["<call>"]), ["a <call>{1}</call> b"], ["<call><call>", "</call>"]),
    (formed(triggered(TAG, OTHER)), ["", "a<f=b>x</f>b<f=a>1</f>"], ["<f=b>1", "<f"]),
    (
        formed(triggered(TAG, at_least_one=True)),
        ["<f=a>1</f>", "<f=a>1</f> and <f=a>22</f>."],
        ["", "a", "<f=a>"],
    ),
    (formed(triggered(TAG, stop_after_first=True)), ["", "a<f=a>1</f>"], ["<f=a>1</f>a"]),
    (
        formed(triggered(TAG, at_least_one=True, stop_after_first=True)),
        ["<f=a>1</f>"],
        ["a<f=a>1</f>", "<f=a>1</f>a"],
    ),
    (
        formed({"type": "tags_with_separator", "tags": [TAG, OTHER], "separator": ", "}),
        ["", "<f=a>1</f>", "<f=a>1</f>, <f=b>x</f>"],
        ["a", "<f=a>1</f>,", "<f=a>1</f><f=a>1</f>"],
    ),
    (formed(THOUGHT), ["<t>hm<t></t>1", "<t></t>22"], ["1", "<t>", "<t>hm</t>", "<t></t>3"]),
    (
        formed({"type": "or", "elements": [{"type": "regex", "pattern": "a/b+"}, NUMBER]}),
        ["a/bb", "22"],
        ["a/", "22a"],
    ),
    (
        formed({"type": "plus", "content": {"type": "const_string", "value": "ab"}}),
        ["abab"],
        ["", "a"],
    ),
    (formed({"type": "optional", "content": NUMBER}), ["", "1"], ["11"]),
    (
        formed({"type": "tag", "begin": "<a>", "content": ANYTHING, "end": "</a>"}),
        ["<a>foo</a>", "<a></a>"],
        ["<a>foo", "<a>foo</a>b"],
    ),
    (formed({"type": "tag", "begin": "", "content": WORD, "end": "end"}), ["bend"], ["end", "b"]),
    (
        formed({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "\n</call>"}),
        ["line\nline\n</call>", "\n</call>"],
        ["line</call>", "line\n"],
    ),
    (
        structures(
            {"begin": "<fn:", "end": ">"},
            {"begin": "<f:", "end": ">"},
            triggers=["<fn", "<f"],
        ),
        ["a<fn:22>", "<f:1>b"],
        ["<fn1", "<f1"],
    ),
]


def ids(text):
    """Of the tokenizer of bytes, special tokens as such."""
    for place, name in enumerate(SPECIAL):
        text = text.replace(name, chr(0xE000 + place))
    return [ord(sign) - 0xE000 + 257 if ord(sign) >= 0xE000 else ord(sign) for sign in text]


def matcher(value):
    wanted = ResponseFormat(FormatKind.STRUCTURAL_TAG, (json.dumps(value),))
    named = named_in(wanted, SPECIAL)
    assert check(wanted, named).complaint == ""
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(SPECIAL)), eos_token=[256])
    return LLMatcher(tokenizer, grammar(wanted, named), log_level=0, limits=LIMITS)


@pytest.mark.parametrize(("value", "good", "bad"), CASES, ids=str)
def test_what_a_structural_tag_allows(value, good, bad) -> None:
    made = matcher(value)
    for text, wanted in [*((text, True) for text in good), *((text, False) for text in bad)]:
        own = made.deep_copy()
        whole = own.try_consume_tokens(ids(text)) == len(ids(text)) if text else True
        assert (whole and own.is_accepting()) == wanted, text


def test_special_tokens_of_a_tag_are_tokens_and_no_text() -> None:
    made = matcher(structures(CALL, triggers=["<call>"]))
    spelled = made.deep_copy()
    assert spelled.try_consume_tokens(list(b"<call>{3}")) == 9  # Text, so no trigger.
    assert made.try_consume_tokens([257, *b"{1}"]) == 4
    assert made.try_consume_tokens(list(b"<")) == 0
    assert made.try_consume_tokens([258]) == 1


def test_a_special_token_is_found_however_json_writes_it() -> None:
    for written in (r'"\u003ccall\u003e"', '"<call>"'):
        wanted = ResponseFormat(FormatKind.STRUCTURAL_TAG, (f'{{"begin": {written}}}',))
        assert named_in(wanted, SPECIAL) == ("<call>",)
    wanted = ResponseFormat(FormatKind.STRUCTURAL_TAG, (r'{"end": "<\/call>"}',))
    assert named_in(wanted, SPECIAL) == ("</call>",)


class ReadOnce(str):
    """A text that is not searched for one name after another."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        raise AssertionError("searched for a single name")


@given(st.text("<>a b\n|é", max_size=30))
def test_the_special_tokens_that_a_format_may_mean_are_found_in_one_reading(text) -> None:
    """However many there are: a model may have thousands, and a format 64 KB."""
    names = ["<a>", "<b>", "<|a|>", "<a<b>", "<a b>", "<é>", "a", "<>", "<"]
    found = named_in(ResponseFormat(FormatKind.GRAMMAR, (ReadOnce(text),)), names)
    assert found == tuple(name for name in [*names[:3], "<é>"] if name in text)


def test_a_trigger_that_ends_within_a_special_token_is_refused() -> None:
    value = structures(CALL, triggers=["<ca"])
    wanted = ResponseFormat(FormatKind.STRUCTURAL_TAG, (json.dumps(value),))
    told = check(wanted, SPECIAL).complaint
    assert told == "a trigger ends within a special token of begin"


def test_tags_in_tags_with_many_ends_are_bounded() -> None:
    value = NUMBER
    for _ in range(40):
        value = {"type": "tag", "begin": "a", "content": value, "end": ["b", "c"]}
    told = check(ResponseFormat(FormatKind.STRUCTURAL_TAG, (json.dumps(formed(value)),)))
    assert told.complaint == "more than 256 tags"
