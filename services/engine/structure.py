"""Which tokens a response format allows next (llguidance; Willard and Louf, 2307.09702).

A mask depends on the tokens before its row and on nothing else. Applied to every row
of target and draft, it makes another model of each, whose law is that of plain
constrained decoding; the rules of verification need not know.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import chain
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from services.contract.errors import BusyError
from services.contract.texts import common_prefix
from services.contract.types import FormatKind, FormatMarker, ResponseFormat, TokenizerBundle
from services.engine.marker import FreeText, Marker
from services.engine.port import Engine
from services.grammar.formats import LIMITS, dead_end, grammar, named_in
from services.grammar.spelling import spelling
from services.grammar.spending import DRAFTS, LIGHT, OUTPUTS, Spending, Weight
from services.grammar.vetting import Vetted, Vetting

logger = logging.getLogger(__name__)

LEAST_RELEASE = (1, 9)
"""Of llguidance. Those before let whitespace between the parts of JSON go on without an end."""
KEPT_GRAMMARS, KEPT_BYTES = 64, 256 << 20

Mask = NDArray[np.bool_]
T = TypeVar("T")


class StructureError(Exception):
    """A format cannot be compiled, or not be followed any further; says why, in one line."""


class TooCostly(StructureError):
    """Following a format takes more CPU time than an output may."""


class Compiled:
    """A format on its way to its grammar, which sessions of equal formats share."""

    def __init__(self) -> None:
        self.matcher: Future[LLMatcher] = Future()
        self.size = 0
        """Bytes, about; known once it is done."""
        self.weight = Weight()

    @property
    def done(self) -> bool:
        """Whether it is there, or can never be. Safe in any thread."""
        return self.matcher.done()


class Structures:
    """Compiled formats for one tokenizer; the last few stay, the bad ones, too.

    Belongs to one thread. With `vetting` that thread compiles nothing: a format is vetted,
    then compiled in the thread of the child that vetted it, and `wake` is called.
    """

    def __init__(
        self,
        bundle: TokenizerBundle,
        vocab_size: int,
        vetting: Vetting | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Takes a second for a large vocabulary, in which no other thread goes on.

        `clock`: CPU seconds of the calling thread, by which following a format is charged.

        Raises StructureError for a tokenizer whose tokens have no bytes that can be told, and
        for an llguidance that lets whitespace go on without an end.
        """
        release = metadata.version("llguidance")
        if tuple(map(int, release.split(".")[:2])) < LEAST_RELEASE:
            raise StructureError(f"llguidance {release} is too old")
        try:
            self._tokenizer = LLTokenizer(
                spelling(bundle.tokenizer_json),
                n_vocab=vocab_size,
                eos_token=list(bundle.eos_token_ids),
            )
        except Exception as error:  # llguidance raises what its tokenizer library does
            raise StructureError(f"the tokenizer cannot be used: {type(error).__name__}") from error
        self._width = vocab_size
        self._ends = frozenset(bundle.eos_token_ids)
        self._special = _special_names(self._tokenizer)
        self._vetting, self._clock = vetting, clock
        self._compiled: OrderedDict[ResponseFormat, Compiled] = OrderedDict()
        self.wake: Callable[[], object] = lambda: None
        """Called in another thread whenever a format is done."""

    def matcher(self, wanted: ResponseFormat, *, lenient: bool = False) -> Matcher:
        """A matcher in front of the first token, however long it takes. Raises StructureError."""
        return self.follow(self.compiled(wanted), wanted.start, lenient=lenient)

    def compiled(self, wanted: ResponseFormat, owner: str = "") -> Compiled:
        """The format's grammar, under way; `owner`: whose turn it takes.

        Where it begins is no part of it. Raises Overloaded where too many wait.
        """
        wanted = replace(wanted, start=None)
        found = self._compiled.get(wanted)
        if found is None or _was_busy(found):
            found = self._compiled[wanted] = self._begin(wanted, owner)
        self._compiled.move_to_end(wanted)
        self._let_go()
        return found

    def follow(
        self, compiled: Compiled, start: FormatMarker | None = None, *, lenient: bool = False
    ) -> Matcher:
        """A matcher in front of the first token, of a grammar that is done and begins at `start`.

        Raises StructureError for a format that cannot be kept to, and BusyError where that
        could not be told.
        """
        error = compiled.matcher.exception()
        if error is not None:
            # A new one: what is raised again and again gathers tracebacks.
            raise type(error)(str(error))
        matcher = compiled.matcher.result()
        free = FreeText(None if start is None else self._marker(start))
        spending = Spending(DRAFTS if lenient else OUTPUTS, self._clock, compiled.weight)
        return Matcher(matcher.deep_copy(), self._width, self._ends, lenient, free, spending)

    def _marker(self, start: FormatMarker) -> Marker:
        if start.token_ids:
            return Marker(start.token_ids, lambda token: (token,))
        spell = self._tokenizer.decode_bytes
        return Marker(start.text.encode(), lambda token: spell([token]))

    def _begin(self, wanted: ResponseFormat, owner: str) -> Compiled:
        begun = Compiled()
        if wanted.kind is FormatKind.CHOICE and not all(map(self._can_say, wanted.source)):
            begun.matcher.set_exception(StructureError("this model has no tokens for an option"))
            return begun
        if self._vetting is None:
            _settle(begun, lambda: self._compile(begun, self._read(wanted)))
            return begun
        vetted = self._vetting.submit(wanted, owner, named_in(wanted, self._special))
        vetted.add_done_callback(partial(self._go_on, begun))
        return begun

    def _can_say(self, text: str) -> bool:
        spelled = self._tokenizer.tokenize_str(text)
        return self._tokenizer.decode_bytes(spelled) == text.encode()

    def _go_on(self, begun: Compiled, vetted: Future[Vetted]) -> None:
        """In the thread of a child that has vetted the format."""

        def matcher() -> LLMatcher:
            found = vetted.result()
            begun.size = found.size
            if found.complaint:
                raise StructureError("it cannot be compiled within the bounds of this worker")
            return self._compile(begun, found.grammar)

        _settle(begun, matcher)
        self.wake()

    def _read(self, wanted: ResponseFormat) -> str:
        try:
            return grammar(wanted, named_in(wanted, self._special))
        except ValueError:
            raise StructureError("it cannot be read") from None

    def _compile(self, begun: Compiled, wanted: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, wanted, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise StructureError("it cannot be compiled")
        began = self._clock()
        # The first mask is the costliest as a rule, and what it finds out, all sessions share.
        if end := dead_end(matcher):
            raise StructureError(end)
        begun.weight.heavy = self._clock() - began > LIGHT
        return matcher

    def _let_go(self) -> None:
        """Forget those that were asked for longest ago, where there are too many or too large."""
        kept = self._compiled
        while len(kept) > KEPT_GRAMMARS or (
            len(kept) > 1 and sum(own.size for own in kept.values()) > KEPT_BYTES
        ):
            kept.popitem(last=False)


def _settle(compiled: Compiled, work: Callable[[], LLMatcher]) -> None:
    try:
        compiled.matcher.set_result(work())
    except (StructureError, BusyError) as error:
        compiled.matcher.set_exception(error)
    except Exception as error:
        logger.exception("a response format was not compiled")
        told = StructureError(f"it cannot be compiled ({type(error).__name__})")
        compiled.matcher.set_exception(told)


def _was_busy(compiled: Compiled) -> bool:
    """Whether it ended without an answer, so that it is to be tried again."""
    return compiled.done and isinstance(compiled.matcher.exception(), BusyError)


def _special_names(tokenizer: LLTokenizer) -> list[str]:
    """Names of the tokens that are no text."""
    special = filter(tokenizer.is_special_token, range(tokenizer.vocab_size))
    return [tokenizer.decode_bytes([token]).decode(errors="replace") for token in special]


def structures_of(engine: Engine, vetting: Vetting | None = None) -> Structures | None:
    """For the engine's tokenizer; None, and a warning, where it has none that can be used."""
    if engine.bundle is None:
        return None
    try:
        return Structures(engine.bundle, engine.vocab_size, vetting)
    except StructureError as error:
        logger.warning("response formats are not served: %s", error)
        return None


class Matcher:
    """One output and what may follow it; `extend` and `rewind` move it for good.

    An output is free text up to its marker, then what the format allows, then the end. Behind
    the end-of-text token anything is allowed: nobody reads on there. Where the format cannot be
    followed any further, a `lenient` one allows everything, and others allow nothing. Where that
    takes more time than is allowed, others raise TooCostly.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        width: int,
        ends: frozenset[int],
        lenient: bool,
        free: FreeText,
        spending: Spending,
    ) -> None:
        self._matcher = matcher
        self._free = free
        self._lenient, self.spending = lenient, spending
        self._width = width
        self._ends = ends
        self._output: list[int] = []
        self._path: list[int] = []
        self._formed = 0
        """How many tokens the matcher took."""
        self._behind = 0
        """How many of the last tokens are the end or lie behind it: unknown to the matcher."""
        self._made: tuple[Mask | None] | None = None
        """The mask behind the output, where it was made before it is asked for."""
        self.stuck = False
        """Whether the format cannot be followed any further, so that nothing is allowed."""

    @property
    def length(self) -> int:
        """Tokens of the output that it follows."""
        return len(self._output)

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the output stay."""
        self._made = None
        self._walk(())
        if length < len(self._output):
            self._back(len(self._output) - length)
            del self._output[length:]

    def extend(self, tokens: Sequence[int]) -> bool:
        """More output; False, and nothing is changed, where the format does not allow it.

        A format that cannot be followed any further takes all.
        """
        if not self._walk(tokens) and not self.stuck:
            self._walk(())
            return False
        self._output += tokens
        self._path, self._made = [], None
        return True

    def advance(self, tokens: Sequence[int], seconds: float) -> bool:
        """The same for as many of a long text as so much CPU time is enough for, one at least.

        How many they were, `length` says. False where the next one is not allowed.
        """
        began, walked = self.spending.clock(), common_prefix(self._path, tokens)
        pieces = chain([tokens[:walked]] * bool(walked), ((own,) for own in tokens[walked:]))
        for piece in pieces:
            if not self.extend(piece):
                return False
            if self.spending.clock() - began >= seconds:
                break
        return True

    def prepare(self) -> None:
        """Make the mask of what follows the output now: `mask` will have it at once.

        In any thread, while nothing else is asked of it; raises what `mask` does.
        """
        self._made = (self.mask(()),)

    def mask(self, path: Sequence[int]) -> Mask | None:
        """Which tokens may follow the output and `path`, bool [V].

        None = any: in free text, behind the end, and where the format does not allow `path`
        itself, so that no target gets there.
        """
        if self._made is not None and not path:
            return self._made[0]
        formed = self._walk(path) and not self._behind and self._free.complete
        formed = formed and self._may_go_on()
        mask = self._charged(self._matcher.compute_bitmask) if formed else b""
        bits = np.frombuffer(mask, dtype=np.uint8)
        formed = formed and self._followed()
        if self.stuck:
            return np.zeros(self._width, dtype=np.bool_)
        if not formed:
            return None
        return np.unpackbits(bits, count=self._width, bitorder="little").view(np.bool_)

    def must_end(self, path: Sequence[int]) -> bool:
        """Whether nothing but the end may follow the output and `path`."""
        formed = self._walk(path) and not self._behind and self._free.complete
        return formed and self._matcher.is_stopped()

    def _walk(self, path: Sequence[int]) -> bool:
        """Stand behind `path`; False where the format does not allow it."""
        same = common_prefix(self._path, path)
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
            taken = self._free.take(tokens[:inside])
            taken += self._form(tokens[taken:inside])
            if taken < inside or (inside < len(tokens) and not self._may_end()):
                return taken
        self._behind += len(tokens) - inside
        return len(tokens)

    def _form(self, tokens: Sequence[int]) -> int:
        """One by one: the lock of Python's interpreter is held while one is taken."""
        taken = 0
        consume = self._matcher.try_consume_tokens
        for token in tokens:
            if not self._may_go_on() or not self._charged(consume, [token]):
                break
            taken += 1
        self._formed += taken
        if taken < len(tokens):
            self._followed()
        return taken

    def _may_go_on(self) -> bool:
        """Whether there is time for another mask or token; a lenient one may have none."""
        if not self.spending.over:
            return True
        if self._lenient:
            return False
        raise TooCostly("following it takes more CPU time than an output may")

    def _charged(self, work: Callable[..., T], *given: object) -> T:
        """What a mask or a token gives; its time is counted."""
        began = self.spending.clock()
        try:
            return work(*given)
        finally:
            self.spending.add(self.spending.clock() - began)

    def _may_end(self) -> bool:
        return not self._free.complete or self._charged(self._matcher.is_accepting)

    def _back(self, tokens: int) -> None:
        behind = min(tokens, self._behind)
        formed = min(tokens - behind, self._formed)
        self._behind -= behind
        self._formed -= formed
        self._free.back(tokens - behind - formed)
        if formed and not self._matcher.rollback(formed):
            self._followed()

    def _followed(self) -> bool:
        """Whether the format can be followed up to here."""
        broken = self._matcher.is_error()
        self.stuck = self.stuck or (broken and not self._lenient)
        return not broken
