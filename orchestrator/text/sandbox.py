"""jinja2's immutable sandbox, with an end to what a template may take.

jinja2 keeps a template from the interpreter, but not from loops within loops, nor from values
that double with every line. Here a text has a share of processor time, looked at in every turn
of a loop and at every call, and a share of characters, of which every value takes as many as it
would have if it were written out. Where an operation can make much of little, that is reckoned
before it is done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from contextlib import contextmanager
from functools import wraps
from threading import local
from types import BuiltinMethodType, GeneratorType
from typing import Any, NoReturn

from jinja2 import FunctionLoader, TemplateError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_SECONDS = 5.0
"""Of processor time, for one text."""
MOST_CHARACTERS = 8 * 1024 * 1024
"""Of one value."""
MOST_MADE = 128 * 1024 * 1024
"""Characters of all values that are made for one text."""
MOST_NUMBER = 10_000
"""Of what says how often or how wide: an indent, a width."""
MOST_BITS = 4096
"""Of a whole number."""

_LOOK = 16
"""Turns and calls between two looks at the clock."""
_SMALL = 8
"""Characters that a number or an empty list counts as."""
_LISTS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
_TEXT = (str, bytes)


class _Share(local):
    """What the text that a thread renders has left."""

    def __init__(self) -> None:
        self.anew()

    def anew(self) -> None:
        """For another text."""
        self.until = time.thread_time() + MOST_SECONDS
        self.turns, self.left = 0, MOST_MADE

    def turn(self, characters: int = 0) -> bool:
        """One more turn of a loop, or call; true."""
        self.turns += 1
        if not self.turns % _LOOK and time.thread_time() > self.until:
            raise TemplateError(f"it takes more than {MOST_SECONDS:g} seconds")
        self.take(characters)
        return True

    def take(self, characters: int) -> None:
        """As many characters are about to be made."""
        self.left -= characters
        if self.left < 0:
            raise TemplateError(f"it makes more than {MOST_MADE} characters in all")
        self.fits(characters)

    @staticmethod
    def fits(characters: int) -> None:
        """Of one value."""
        if characters > MOST_CHARACTERS:
            raise TemplateError(f"it makes a value of more than {MOST_CHARACTERS} characters")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which each thread renders one text at a time; see `rendering`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        self.share = _Share()
        super().__init__(finalize=self._written, loader=FunctionLoader(_no_other), **options)
        del self.globals["lipsum"]
        tables: list[dict[str, Any]] = [self.filters, self.tests]
        for table in tables:
            table.update({name: self._bounded(name, one) for name, one in table.items()})
        for name in (_TURN, _MADE, _JOINED):
            self.filters[name] = getattr(self, f"_{name.strip()}")

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Around each text, and around compiling, where constants are worked out."""
        self.share.anew()
        yield

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """One more filter, bounded as the others are."""
        self.filters[name] = self._bounded(name, function)

    def _parse(self, *given: Any) -> nodes.Template:
        tree: nodes.Template = _Watched().visit(super()._parse(*given))
        tree.set_environment(self)
        return tree

    # --- what the code of a template calls --------------------------------------------

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Of two texts, lists or numbers."""
        self.share.take(_of_two(operator, left, right))
        return self.made(super().call_binop(context, operator, left, right))

    def call(
        __self,  # noqa: N805
        __context: Context,
        __function: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """A function, method or macro."""
        __self.share.turn()
        method = getattr(__function, "__wrapped__", __function)
        owner = method.__self__ if isinstance(method, BuiltinMethodType) else None
        if isinstance(owner, (*_TEXT, int)):
            name = method.__name__
            args = tuple(_held(name, one) for one in args)
            own = [one for name, one in kwargs.items() if not name.startswith("_")]
            __self.share.take(_of_one(name, owner, [*args, *own]))
        result = super().call(__context, __function, *args, **kwargs)
        return result if isinstance(owner, dict | list) else __self.made(result)

    def made(self, value: Any) -> Any:
        """A value that is new, weighed: what is in it may be in it many times."""
        if isinstance(value, _TEXT):
            self.share.take(len(value))
        elif isinstance(value, (dict, *_LISTS)):
            self.share.fits(weight(value))
            self.share.take(_SMALL * len(value))
        return value

    def _written(self, value: Any) -> Any:
        """A value that goes into a text as it is."""
        self.share.take(weight(value))
        return value

    @pass_context
    def _turn(self, _context: Context, written: int) -> bool:
        return self.share.turn(written)

    @pass_context
    def _made(self, _context: Context, value: Any) -> Any:
        return self.made(value)

    @pass_context
    def _joined(self, _context: Context, *parts: Any) -> str:
        return "".join([str(self._written(part)) for part in parts])

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or test."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.share.turn()
            value, *options = (_held(name, one) for one in args[first:])
            self.share.take(_of_one(name, value, [*options, *kwargs.values()]))
            return self.made(function(*args[:first], value, *options, **kwargs))

        return bounded


_TURN, _MADE, _JOINED = " turn", " made", " joined"
"""Filters that no template can name."""
_PADDING = ("center", "ljust", "rjust", "zfill", "batch", "slice", "to_bytes")
_WIDENING = (*_PADDING, "expandtabs", "indent", "wordwrap", "tojson")
_OFTEN = ("translate", "wordwrap", "urlize", "xmlattr", "expandtabs")
"""Each character of the value may become as many as the options have."""
_WIDTH = re.compile(r"%(?:\([^)]*\))?[#0 +-]*(\d*)(?:\.(\d+))?|\{[^{}]*?:[^{}\d]*(\d*)(?:\.(\d+))?")
_GIVEN_WIDTH = re.compile(r"%[^a-z]*\*|\{[^{}]*\{")


def weight(value: Any) -> int:
    """Characters of a value when it is written out, more or less, as far as is allowed."""
    total, left = 0, [value]
    while left and total <= MOST_CHARACTERS:
        one = left.pop()
        total += len(one) if isinstance(one, _TEXT) else _SMALL
        if isinstance(one, dict):
            left.extend(one)
            left.extend(one.values())
        elif isinstance(one, _LISTS):
            left.extend(one)
    return total


def _no_other(name: str) -> NoReturn:
    raise TemplateError(f"it asks for another template, {name!r}: there is none")


def _held(name: str, value: Any) -> Any:
    """What is joined, in memory: it can be weighed before it is joined."""
    return list(value) if name in ("join", "sum") and isinstance(value, GeneratorType) else value


def _of_two(operator: str, left: Any, right: Any) -> int:
    """Characters that an operation will make, at most."""
    if isinstance(left, int) and isinstance(right, int):
        times = max(right, 1) if operator == "**" else 1
        if operator in "**" and left.bit_length() * times + right.bit_length() > MOST_BITS:
            raise TemplateError("it makes too large a number")
        return 0
    if operator == "*":
        value, times = (right, left) if isinstance(left, int) else (left, right)
        return weight(value) * abs(times) if isinstance(times, int) else 0
    if operator == "%" and isinstance(left, _TEXT):
        return _of_one("format", left, [right])
    return 0


def _of_one(name: str, value: Any, options: Sequence[Any]) -> int:
    """Characters that a method, filter or test of a value will make, at most.

    Nothing for what makes no more than the value is; what that makes is weighed afterwards.
    """
    numbers = [abs(one) for one in options if isinstance(one, int)]
    if name in _WIDENING and max(numbers, default=0) > MOST_NUMBER:
        raise TemplateError(f"{name}: a number above {MOST_NUMBER}")
    wide = max(numbers, default=_SMALL)
    match name:
        case "join":
            parts, mark = (value, options) if _is_list(value) else (options, value)
            return weight(parts) + _count(parts) * weight(mark)
        case "sum":
            return 0 if all(map(_is_number, options)) else weight(value) * len(value)
        case "tojson":
            count, depth = _shape(value)
            return weight(value) + count * (depth * wide + weight(options))
    if not isinstance(value, _TEXT):
        return 0
    text: Any = value
    match name:
        case "replace" if len(options) > 1 and isinstance(options[0], type(text)):
            return len(text) + int(text.count(options[0])) * weight(options[1])
        case "format" | "format_map":
            return _of_format(str(text), options)
        case "indent":
            lines = 1 + int(text.count("\n"))
            return len(text) + lines * max(wide, weight(options))
    return len(text) * (1 + wide + weight(options)) if name in _OFTEN else 0


def _of_format(pattern: str, options: Sequence[Any]) -> int:
    """A width may be written in it, or be given."""
    widths = [width for found in _WIDTH.findall(pattern) for width in found if width]
    if any(len(width) > 9 for width in widths):
        raise TemplateError("format: a number of too many digits")
    places = pattern.count("%") + pattern.count("{")
    given = 0
    if _GIVEN_WIDTH.search(pattern):
        given = max((abs(one) for one in _flat(options) if isinstance(one, int)), default=0)
    return len(pattern) + sum(map(int, widths)) + places * (weight(list(options)) + given)


def _flat(options: Sequence[Any]) -> Iterator[Any]:
    for one in options:
        if isinstance(one, dict):
            yield from one.values()
        elif _is_list(one):
            yield from one
        else:
            yield one


def _is_list(value: Any) -> bool:
    return isinstance(value, _LISTS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or value is None


def _count(value: Any) -> int:
    return sum(len(one) if isinstance(one, (*_TEXT, *_LISTS)) else 1 for one in value)


def _shape(value: Any) -> tuple[int, int]:
    """How many values are in a value, and how deep; for one that was weighed."""
    count, depth, level = 0, 0, [value]
    while level:
        count, depth = count + len(level), depth + 1
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for outer in inside if _is_list(outer) for one in outer]
    return count, depth


class _Watched(NodeTransformer):
    """A template's tree in which loops are counted and new values are weighed."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        """Every turn, those that its `if` passes over, too."""
        self.generic_visit(node)
        written = sum(len(one.data) for one in node.find_all(nodes.TemplateData))
        turn = _filter(_TURN, [nodes.Const(written)])
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_filter(_TURN, [nodes.Const(0)]), node.test)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        """`a ~ b`."""
        self.generic_visit(node)
        return _filter(_JOINED, node.nodes)

    def _visit_literal(self, node: Any) -> nodes.Expr:
        self.generic_visit(node)
        plain = all(isinstance(one, nodes.Const) for one in node.iter_child_nodes())
        stored = getattr(node, "ctx", "load") != "load"
        return node if plain or stored else _filter(_MADE, [node])

    visit_List = visit_Tuple = visit_Dict = _visit_literal  # noqa: N815


def _filter(name: str, given: list[nodes.Expr]) -> nodes.Expr:
    return nodes.Filter(given[0], name, given[1:], [], None, None)
