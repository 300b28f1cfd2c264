"""What else a conversation may be given as, to a template that does not take it as it is.

Templates differ in what they expect of calls, of a content that is not there, and of roles, and
where they get something else they fail, or leave it out without a word. So one is tried beside
the other, the one that transformers gives first, those that change the least next; and what
becomes of calls, results and roles of their own is seen by marks in their place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

Message = Mapping[str, Any]
"""One turn as the template sees it: its `role`, its `content`, and what else it has."""
Messages = list[Message]
Reading = Callable[[Messages], Messages]

_USUAL_ROLES = ("system", "user", "assistant")
_ID = re.compile(r"[A-Za-z0-9]{9}")
_MOST_MARKS = 4096
"""In a conversation; what comes behind them is taken to be treated alike."""
_MARK = re.compile(r"qz(\d+)x\d+zq")


def readings(messages: Sequence[Message]) -> Iterator[Reading]:
    """Ways to give them, as they are first, then by how much is changed."""
    given = list(messages)
    ways = [[_as_it_is, *(one for one in kind if one(given) != given)] for kind in _KINDS]
    for chosen in sorted(product(*ways), key=_changes):
        yield partial(_in_turn, chosen)


def _changes(chosen: Sequence[Reading]) -> int:
    return sum(one is not _as_it_is for one in chosen)


def _in_turn(chosen: Sequence[Reading], talk: Messages) -> Messages:
    for one in chosen:
        talk = one(talk)
    return talk


def _as_it_is(talk: Messages) -> Messages:
    return talk


def _arguments_as_text(talk: Messages) -> Messages:
    """As the OpenAI API has them."""
    return [_with_calls(one, _of_text) for one in talk]


def _with_calls(message: Message, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [change(one) for one in calls]} if calls else message


def _of_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _null_beside_calls(talk: Messages) -> Messages:
    """For who asks whether a content is none; what was said beside calls is a turn before."""
    return [part for one in talk for part in _alone(one)]


def _alone(message: Message) -> list[Message]:
    if not message.get("tool_calls"):
        return [message]
    before: list[Message] = []
    if message.get("content"):
        before = [{key: value for key, value in message.items() if key != "tool_calls"}]
        message = {key: value for key, value in message.items() if key != "reasoning_content"}
    return [*before, {**message, "content": None}]


def _empty_content(talk: Messages) -> Messages:
    """For who reads it in any case."""
    return [one if one.get("content") is not None else {**one, "content": ""} for one in talk]


def _developer_as_system(talk: Messages) -> Messages:
    return [{**one, "role": "system"} if one["role"] == "developer" else one for one in talk]


def _ids_of_nine(talk: Messages) -> Messages:
    """Ids of calls, and of their results, as nine letters and digits."""
    return [_with_short_id(_with_calls(one, _of_short_id)) for one in talk]


def _of_short_id(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "id": _short(call["id"])} if "id" in call else call


def _with_short_id(message: Message) -> Message:
    of = message.get("tool_call_id")
    return {**message, "tool_call_id": _short(of)} if of else message


def _short(name: str) -> str:
    return name if _ID.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:9]


_KINDS: tuple[tuple[Reading, ...], ...] = (
    (_empty_content, _null_beside_calls),
    (_arguments_as_text,),
    (_ids_of_nine,),
    (_developer_as_system,),
)
"""Of each kind one at most is chosen."""


class Marked:
    """A conversation with marks in place of what no template may leave out.

    That is each name and argument of a call, each result, and what is said in roles that not
    every template knows. Marks need no escapes, and stand in no other text.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._made: list[str] = []
        self.messages = [self._turn(f"qz{i}x", one) for i, one in enumerate(messages)]

    def lost(self, text: str) -> int | None:
        """The index of the first message of which a part is not in the text; None: all is."""
        found = {one[0] for one in _MARK.finditer(text)}
        lost = next((mark for mark in self._made if mark not in found), None)
        return None if lost is None else int(_MARK.match(lost)[1])  # type: ignore[index]

    def __bool__(self) -> bool:
        """Whether there is anything of the kind."""
        return bool(self._made)

    def _turn(self, start: str, message: Message) -> Message:
        if (content := message.get("content")) and message["role"] not in _USUAL_ROLES:
            message = {**message, "content": self._value(start, content)}
        return _with_calls(message, lambda call: self._call(start, call))

    def _call(self, start: str, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {**call, "function": {key: self._value(start, one) for key, one in function.items()}}

    def _value(self, start: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._value(start, one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(start, one) for one in value]
        if len(self._made) == _MOST_MARKS:
            return value
        self._made.append(f"{start}{len(self._made)}zq")
        return self._made[-1]
