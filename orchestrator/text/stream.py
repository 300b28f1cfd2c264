"""The text of a session as its tokens come.

The text after n tokens is a function of those n tokens, of the stop strings and
of the output flags: how the tokens were cut into chunks leaves no trace in it, so
a resumed stream starts exactly where the first n tokens ended.

Held back: the start of an incomplete character, and an end of the text that may
still become a stop string. At the end of the output the latter comes out, the
former never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from orchestrator.steering.config import TextStop
from orchestrator.text.detokenize import DecodeState, advance
from orchestrator.text.stops import ROOT, StopMatcher
from orchestrator.text.tokenizer import Tokenizer

# Tokens of a long text that become text at once: about half a millisecond.
STEP = 32


class TextState(NamedTuple):
    """What the `tokens` so far leave behind; `stop` is the stop string that they completed."""

    decode: DecodeState = DecodeState()
    tokens: int = 0
    node: int = ROOT
    held: str = ""
    stop: str = ""


class TextStream:
    """The text of one session so far, a piece for each token; amortised constant work a token.

    A stop string counts when its last character comes with a token after the
    first `min_tokens`; of several, the one completed first, then the longest. It
    is cut off unless `include_stop_str`. So is the text of `stop_token_ids`. One
    that is the name of a special token is that token, too, though it is skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        skip_special_tokens: bool = True,
        stop_token_ids: Iterable[int] = (),
        min_tokens: int = 0,
    ) -> None:
        hidden = frozenset() if include_stop_str else frozenset(stop_token_ids)
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._silent = hidden | skipped
        self._named = tokenizer.special_named(stop)
        self._tokenizer = tokenizer
        self._matcher = StopMatcher(stop) if stop else None
        self._include_stop_str = include_stop_str
        self._min_tokens = min_tokens
        self.state = TextState()
        self._pieces: list[str] = []

    def __len__(self) -> int:
        """Tokens taken so far."""
        return len(self._pieces)

    def _step(self, state: TextState, token: int) -> tuple[TextState, str]:
        """The state after one more token, and the text it released. Pure."""
        decode, text = state.decode, ""
        hidden = bool(state.stop) or token in self._silent
        if hidden and self._names_stop(state, token):
            name = self._named[token]
            ended = state._replace(tokens=state.tokens + 1, node=ROOT, held="", stop=name)
            return ended, state.held + (name if self._include_stop_str else "")
        if not hidden:
            decode, text = advance(self._tokenizer, decode, token)
        counted = TextState(decode, state.tokens + 1, state.node, state.held, state.stop)
        if self._matcher is None or not text:
            return counted, text
        return self._watch(self._matcher, counted, text)

    def _names_stop(self, state: TextState, token: int) -> bool:
        counts = not state.stop and state.tokens >= self._min_tokens
        return counts and token in self._named

    def _watch(self, matcher: StopMatcher, state: TextState, text: str) -> tuple[TextState, str]:
        node, waiting = state.node, state.held + text
        for end, char in enumerate(text, len(state.held) + 1):
            node = matcher.step(node, char)
            stop = matcher.match(node)
            if stop and state.tokens > self._min_tokens:
                keep = end if self._include_stop_str else end - len(stop)
                return state._replace(node=ROOT, held="", stop=stop), waiting[:keep]
        keep = len(waiting) - matcher.held(node)
        return state._replace(node=node, held=waiting[keep:]), waiting[:keep]

    def find_stop(self, tokens: Iterable[int]) -> TextStop | None:
        """Where a stop string would end the output if `tokens` followed. Changes nothing."""
        state = self.state
        for keep, token in enumerate(tokens, 1):
            state, _ = self._step(state, token)
            if state.stop:
                return TextStop(keep, state.stop)
        return None

    def append(self, tokens: Iterable[int], finished: bool = False) -> list[str]:
        """Take tokens; the text each released. With `finished` the last releases what is held.

        Tokens after a completed stop string release nothing.
        """
        first = len(self._pieces)
        for token in tokens:
            self.state, piece = self._step(self.state, token)
            self._pieces.append(piece)
        if finished and len(self._pieces) > first:
            self._pieces[-1] += self.state.held
            self.state = self.state._replace(held="", node=ROOT)
        return self._pieces[first:]

    def steps(self, tokens: Sequence[int], finished: bool = False) -> Iterator[None]:
        """`append`, a few tokens at each step."""
        for first in range(0, len(tokens), STEP):
            part = tokens[first : first + STEP]
            self.append(part, finished and first + STEP >= len(tokens))
            yield

    @property
    def text(self) -> str:
        """All text released so far."""
        return "".join(self._pieces)

    def pieces(self, offset: int = 0) -> list[str]:
        """The text each token released, from the one at `offset` on."""
        return self._pieces[offset:]
