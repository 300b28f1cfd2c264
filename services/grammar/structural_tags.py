"""Structural tags as a grammar of llguidance: free text, and parts of a given form in it.

Two ways to write them are in use, and both are read:

    {"structures": [{"begin": .., "schema": {..}, "end": ..}, ..], "triggers": [.., ..]}
    {"type": "structural_tag", "format": {"type": .., ..}}

The first is vLLM's own, the second XGrammar's, which vLLM takes, too. Free text ends where what
has to follow it is first there, so each format is written together with the text behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

MOST_TAGS = 256
MOST_ENDS = 16

_Json = Any
_TEXT = r"TEXT: /(.|\n)*/"


def tags_grammar(source: str, special: Collection[str], json_options: Mapping[str, Any]) -> str:
    """The Lark grammar of a structural tag.

    `special`: names of special tokens, which are no text; `json_options`: of schemas without
    their own. Raises ValueError for what is none.
    """
    value = json.loads(source)
    _need(isinstance(value, dict), "a structural tag is a JSON object")
    rules = _Rules(special, json_options)
    rules.add("start", _whole(rules, value))
    return "\n".join(["%llguidance {}", *rules.lines, _TEXT, ""])


def _whole(rules: _Rules, value: Mapping[str, _Json]) -> str:
    if "format" in value:
        return rules.format(value["format"], "")
    tags = [
        {"begin": one.get("begin"), "end": one.get("end"), "content": _schema(one.get("schema"))}
        for one in _objects(value, "structures")
    ]
    return _triggered(rules, {"triggers": value.get("triggers"), "tags": tags}, "")


def _schema(value: _Json) -> _Json:
    return {"type": "json_schema", "json_schema": value}


class _Rules:
    """A grammar under way."""

    def __init__(self, special: Collection[str], json_options: Mapping[str, Any]) -> None:
        names = "|".join(sorted(map(re.escape, special), key=len, reverse=True))
        # It has to match something, and this matches nothing.
        self._special = re.compile(f"({names or '(?!)'})")
        self._json_options = dict(json_options)
        self.lines: list[str] = []
        self._tags = 0

    def add(self, name: str, body: str) -> str:
        self.lines.append(f"{name}: {body}")
        return name.partition("[")[0]

    def rule(self, body: str, attributes: str = "") -> str:
        """A rule of this body; its name."""
        return self.add(f"part_{len(self.lines)}{attributes}", body or '""')

    def literal(self, text: str) -> str:
        """A text, special tokens in it as such."""
        parts = enumerate(self._special.split(text))
        # Every second one is a special token.
        return " ".join(part if at % 2 else json.dumps(part) for at, part in parts if part)

    def until(self, text: str) -> str:
        """Free text up to where `text` is first there, that included; empty: to the end."""
        return self.ended("TEXT", text)

    def ended(self, pattern: str, text: str) -> str:
        """What a terminal matches, up to where `text` is first there, that included."""
        before, *rest = self._special.split(text, maxsplit=1)
        behind = self.literal("".join(rest))
        if not before:
            return f"{self.rule(pattern)} {behind}"
        body = f"{pattern} {json.dumps(before)}"
        if not rest:
            return self.rule(body, "[lazy]")
        # A special token ends a terminal by itself, so what stands before it may come earlier, too.
        return f"{self.add(f'PART_{len(self.lines)}', body)} {behind}"

    def cuts(self, text: str, place: int) -> bool:
        """Whether a special token reaches across that place of a text."""
        return any(one.start() < place < one.end() for one in self._special.finditer(text))

    def json(self, schema: _Json) -> str:
        _need(isinstance(schema, dict) or schema is True, "a schema is a JSON object")
        own = {} if schema is True else schema
        return f"%json {json.dumps({'x-guidance': self._json_options} | own)}"

    def format(self, value: _Json, end: str) -> str:
        """What a format allows, then the text `end`."""
        _need(isinstance(value, dict), "a format is a JSON object")
        kind = value.get("type")
        read = _FORMATS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise ValueError(f"format.type: {str(kind)[:40]!r} is none of {', '.join(_FORMATS)}")
        _need(not value.get("excludes"), "format.excludes: not read here")
        return read(self, value, end)

    def tag(self, value: Mapping[str, _Json], *, without: str = "", end: str = "") -> str:
        """The rule of a tag whose begin has gone by so far, then the text `end`."""
        self._tags += 1
        _need(self._tags <= MOST_TAGS, f"more than {MOST_TAGS} tags")
        begin = _text(value, "begin")[len(without) :]
        ends = value.get("end")
        several: list[Any] = ends if isinstance(ends, list) else [ends]
        _need(all(isinstance(one, str) for one in several), "tag.end: no text")
        _need(1 <= len(several) <= MOST_ENDS, f"tag.end: not 1 to {MOST_ENDS} texts")
        bodies = [self.format(value.get("content"), one + end) for one in several]
        return self.rule(f"{self.literal(begin)} {_any_of(bodies)}")


# --- the formats of XGrammar ---------------------------------------------------------------


def _const(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    return rules.literal(_text(value, "value") + end) or '""'


def _json_schema(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    _need(value.get("style", "json") == "json", "json_schema.style: json alone is read here")
    return f"{rules.json(value.get('json_schema'))} {rules.literal(end)}"


def _regex(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    pattern = regex_to_lark(_text(value, "pattern"), use_ascii="")
    return rules.ended(f"/{pattern}/", end)


def _any_text(rules: _Rules, _value: Mapping[str, _Json], end: str) -> str:
    return rules.until(end)


def _sequence(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    *before, last = _objects(value, "elements")
    _need(not any(map(_is_open, before)), _OPEN)
    return " ".join([*(rules.format(one, "") for one in before), rules.format(last, end)])


def _or(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    return _any_of([rules.format(one, end) for one in _objects(value, "elements")])


def _tag(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    return rules.tag(value, end=end)


def _triggered(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    """Free text with tags in it, each behind its trigger."""
    tags, triggers = _objects(value, "tags"), value.get("triggers")
    sound = isinstance(triggers, list) and triggers and all(_is_text(one) for one in triggers)
    _need(bool(sound), "triggers: a list of texts that are not empty")
    assert isinstance(triggers, list)
    _need(not any(map(_is_open, tags)), _OPEN)
    behind: dict[str, list[str]] = {}
    for tag in tags:
        begin = _text(tag, "begin")
        # The shortest is the first to be there.
        trigger = min((one for one in triggers if begin.startswith(one)), key=len, default="")
        _need(bool(trigger), "a tag's begin starts with none of the triggers")
        _need(not rules.cuts(begin, len(trigger)), "a trigger ends within a special token of begin")
        behind.setdefault(trigger, []).append(rules.tag(tag, without=trigger))
    after_text = _any_of([f"{rules.until(one)} {_any_of(own)}" for one, own in behind.items()])
    at_once = _any_of([f"{rules.literal(one)} {_any_of(own)}" for one, own in behind.items()])
    if value.get("stop_after_first"):
        first = at_once if value.get("at_least_one") else after_text
        done = f"{first} {rules.literal(end)}"
        return done if value.get("at_least_one") else _any_of([done, rules.until(end)])
    first = at_once if value.get("at_least_one") else ""
    return f"{first} {after_text}* {rules.until(end)}"


def _separated(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
    """Tags and nothing between them but a text."""
    tags = _objects(value, "tags")
    _need(not any(map(_is_open, tags)), _OPEN)
    one = _any_of([rules.tag(tag) for tag in tags])
    more = f"({rules.literal(_text(value, 'separator'))} {one})*"
    several = one if value.get("stop_after_first") else f"{one} {more}"
    often = "" if value.get("at_least_one") else "?"
    return f"({several}){often} {rules.literal(end)}"


def _repeated(mark: str) -> Callable[[_Rules, Mapping[str, _Json], str], str]:
    def read(rules: _Rules, value: Mapping[str, _Json], end: str) -> str:
        _need(not _is_open(value.get("content")), _OPEN)
        return f"({rules.format(value.get('content'), '')}){mark} {rules.literal(end)}"

    return read


_FORMATS: dict[str, Callable[[_Rules, Mapping[str, _Json], str], str]] = {
    "const_string": _const,
    "json_schema": _json_schema,
    "regex": _regex,
    "any_text": _any_text,
    "sequence": _sequence,
    "or": _or,
    "tag": _tag,
    "triggered_tags": _triggered,
    "tags_with_separator": _separated,
    "optional": _repeated("?"),
    "star": _repeated("*"),
    "plus": _repeated("+"),
}
_OPEN = "free text that no text ends, and more behind it"


def _is_open(value: _Json) -> bool:
    """Whether it ends in free text, so that nothing of a form can follow."""
    if not isinstance(value, dict):
        return False
    match value.get("type"):
        case "any_text":
            return True
        case "triggered_tags":
            return not (value.get("stop_after_first") and value.get("at_least_one"))
        case "sequence" | "or":
            return any(map(_is_open, value.get("elements") or ()))
    ends = value.get("end")
    unended = not ends or (isinstance(ends, list) and not all(ends))
    return "content" in value and unended and _is_open(value["content"])


def _any_of(bodies: Sequence[str]) -> str:
    return f"({' | '.join(bodies)})"


def _objects(value: Mapping[str, _Json], name: str) -> Sequence[Mapping[str, _Json]]:
    found = value.get(name)
    sound = isinstance(found, list) and found and all(isinstance(one, dict) for one in found)
    _need(bool(sound), f"{name}: a list of JSON objects, not empty")
    assert isinstance(found, list)
    return found


def _text(value: Mapping[str, _Json], name: str) -> str:
    found = value.get(name)
    _need(isinstance(found, str), f"{name}: no text")
    assert isinstance(found, str)
    return found


def _is_text(value: _Json) -> bool:
    return isinstance(value, str) and bool(value)


def _need(holds: bool, complaint: str) -> None:
    if not holds:
        raise ValueError(complaint)
