"""Which tokens a response format allows next (llguidance; Willard and Louf, 2307.09702).

A mask depends on the tokens before its row and on nothing else. Applied to every row
of target and draft, it makes another model of each, whose law is that of plain
constrained decoding; the rules of verification need not know.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from services.common.engine.forwards import Forwards
from services.common.formats import LIMITS, grammar
from services.common.types import ResponseFormat, TokenizerBundle

logger = logging.getLogger(__name__)

KEPT_GRAMMARS = 64

Mask = NDArray[np.bool_]


class StructureError(Exception):
    """A format cannot be compiled, or not be followed any further; says why, in one line."""


class Structures:
    """Compiled formats for one tokenizer; the last few stay."""

    def __init__(self, bundle: TokenizerBundle, vocab_size: int) -> None:
        """Takes a second for a large vocabulary.

        Raises StructureError for a tokenizer whose tokens have no bytes that can be told.
        """
        try:
            self._tokenizer = LLTokenizer(
                bundle.tokenizer_json, n_vocab=vocab_size, eos_token=list(bundle.eos_token_ids)
            )
        except Exception as error:  # llguidance raises what its tokenizer library does
            raise StructureError(f"the tokenizer cannot be used: {type(error).__name__}") from error
        self._width = vocab_size
        self._ends = frozenset(bundle.eos_token_ids)
        self._compiled: OrderedDict[ResponseFormat, LLMatcher] = OrderedDict()

    def matcher(self, wanted: ResponseFormat, *, lenient: bool = False) -> Matcher:
        """A matcher in front of the first token. Raises StructureError."""
        if wanted not in self._compiled:
            self._compiled[wanted] = self._compile(wanted)
            if len(self._compiled) > KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(wanted)
        return Matcher(self._compiled[wanted].deep_copy(), self._width, self._ends, lenient)

    def _compile(self, wanted: ResponseFormat) -> LLMatcher:
        try:
            matcher = LLMatcher(self._tokenizer, grammar(wanted), log_level=0, limits=LIMITS)
        except ValueError:
            raise StructureError("it cannot be read") from None
        if matcher.is_error():
            raise StructureError("it cannot be compiled")
        return matcher


def structures_of(engine: Forwards) -> Structures | None:
    """For the engine's tokenizer; None, and a warning, where it has none that can be used."""
    if engine.bundle is None:
        return None
    try:
        return Structures(engine.bundle, engine.vocab_size)
    except StructureError as error:
        logger.warning("response formats are not served: %s", error)
        return None


class Matcher:
    """One output and what may follow it; `extend` and `rewind` move it for good.

    Behind the end-of-text token anything is allowed: nobody reads on there. A `lenient`
    one allows everything, too, where the format cannot be followed any further; others
    raise StructureError there.
    """

    def __init__(self, matcher: LLMatcher, width: int, ends: frozenset[int], lenient: bool) -> None:
        self._matcher = matcher
        self._lenient = lenient
        self._width = width
        self._ends = ends
        self._output: list[int] = []
        self._path: list[int] = []
        self._behind = 0
        """How many of the last tokens are the end or lie behind it: unknown to the matcher."""

    @property
    def length(self) -> int:
        """Tokens of the output that it follows."""
        return len(self._output)

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the output stay."""
        self._walk(())
        if length < len(self._output):
            self._back(len(self._output) - length)
            del self._output[length:]

    def extend(self, tokens: Sequence[int]) -> bool:
        """More output; False, and nothing is changed, where the format does not allow it."""
        if list(tokens) == self._path:
            self._output += self._path
            self._path = []
            return True
        self._walk(())
        taken = self._take(tokens)
        if taken < len(tokens):
            self._back(taken)
            return False
        self._output += tokens
        return True

    def mask(self, path: Sequence[int]) -> Mask | None:
        """Which tokens may follow the output and `path`, bool [V].

        None behind the end, and where the format does not allow `path` itself, so that
        no target gets there.
        """
        if not self._walk(path) or self._behind:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if not self._followed():
            return None
        return np.unpackbits(bits, count=self._width, bitorder="little").view(np.bool_)

    def must_end(self, path: Sequence[int]) -> bool:
        """Whether nothing but the end may follow the output and `path`."""
        return self._walk(path) and not self._behind and self._matcher.is_stopped()

    def _walk(self, path: Sequence[int]) -> bool:
        """Stand behind `path`; False where the format does not allow it."""
        same = 0
        for mine, other in zip(self._path, path, strict=False):
            if mine != other:
                break
            same += 1
        self._back(len(self._path) - same)
        del self._path[same:]
        taken = self._take(path[same:])
        self._path += path[same : same + taken]
        return len(self._path) == len(path)

    def _take(self, tokens: Sequence[int]) -> int:
        """Go on with as many tokens as are allowed; how many."""
        inside = 0
        if not self._behind:
            ends = (place for place, token in enumerate(tokens) if token in self._ends)
            inside = next(ends, len(tokens))
            taken = self._matcher.try_consume_tokens(list(tokens[:inside])) if inside else 0
            if taken < inside or (inside < len(tokens) and not self._matcher.is_accepting()):
                return taken
        self._behind += len(tokens) - inside
        return len(tokens)

    def _back(self, tokens: int) -> None:
        behind = min(tokens, self._behind)
        self._behind -= behind
        if tokens > behind and not self._matcher.rollback(tokens - behind):
            self._followed()

    def _followed(self) -> bool:
        """Whether the format can be followed up to here."""
        if not self._matcher.is_error():
            return True
        if self._lenient:
            return False
        # What the matcher says may quote the format, and this goes to logs.
        raise StructureError("it cannot be followed any further")
