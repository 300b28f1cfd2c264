"""What a drafter knows of one session: its text, and how it goes on by the newest hypothesis. Pure.

Rules:

1.  text = prompt + known output + tail. A tail token was drafted from exactly the text before it.
2.  Tokens of a step become known. Where all of them stand at the tail's head, the rest of the tail
    stays a draft, whoever said them; else the tail is given up.
3.  A draft's name is the opening and a number, which grows with every tree, and with every step
    that goes beyond what has left of the tail. So under one name drafts leave without a gap, none
    is drafted twice at one place, and `key`, which draws are made with, never comes again there.
4.  A step that is known changes nothing. One that begins beyond the known output, or says
    otherwise, raises `OutOfStep`: the session is to be opened anew.
5.  The tail is at most `window` long, the output at most `max_tokens`, and, where drafts are
    matched exactly, nothing follows a token that ends the text. In `STANDARD` and `BLOCK` drafting
    goes on behind it; see `VerifyMode.exact_match`.
6.  What leaves, and when, follows from counts alone: each draft token once, in order, whenever
    `taken` is called; of a `synchronous` session the whole draft when nothing more follows.
7.  A tree, or whatever has a `reach`, is a draft by itself, with the tail as its trunk. It leaves
    the text alone, and nothing is drafted behind it before the text or the window grows. Then
    the tail is told again, by another name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.contract.errors import InvalidRequest, NotFound
from services.contract.frames import DraftName, DraftRow, draft_key
from services.contract.texts import common_prefix
from services.contract.top_rows import fits
from services.contract.types import EMPTY_HASH, DraftTree, Proposal, SparseRow, extend_hash
from services.contract.worker_messages import StartDraft
from services.drafter.protocol import Proposed


class OutOfStep(NotFound):
    """A step that does not follow the text known here."""


class HypothesisSession:
    """The bookkeeping of one session; see the rules above."""

    __slots__ = (
        "_handle",
        "_hashes",
        "_last_ids",
        "_laws",
        "_max_tokens",
        "_min_tokens",
        "_number",
        "_proposal",
        "_rests",
        "_sent",
        "_sources",
        "_spent_ms",
        "_synchronous",
        "_term",
        "_told",
        "_tree",
        "_width",
        "committed_length",
        "opening",
        "prompt_length",
        "text",
        "top_rows",
        "window",
    )

    def __init__(self, start: StartDraft) -> None:
        """Raises InvalidRequest for more output than max_tokens, or numbers beyond `draft_key`."""
        self._handle, self._term, self.opening = start.handle, start.term, start.opening
        self._number = 0
        self._max_tokens = start.sampling.max_tokens
        self._min_tokens = start.sampling.min_tokens
        stops = start.sampling.stop_token_ids if start.mode.exact_match else ()
        self._last_ids = frozenset(stops)
        self._synchronous = start.synchronous
        self._width = start.top_rows
        self.top_rows = b""
        """What the target said in steps since the last proposal."""
        self.prompt_length = len(start.prompt)
        self.text = [*start.prompt, *start.output]
        """Prompt + output."""
        self.committed_length = len(start.output)
        """Known tokens of the output."""
        self.window = start.window
        self._check()
        self._hashes = [extend_hash(EMPTY_HASH, start.output)]
        """Of the known output, and behind each token of the tail."""
        self._laws: list[SparseRow | None] = []
        self._sources = bytearray()
        self._sent = 0
        """Tokens of the tail that have left."""
        self._spent_ms = 0.0
        self._proposal = Proposal.ONE_HOT
        self._rests = self._told = False
        self._tree: DraftRow | None = None

    def _check(self) -> None:
        if self.committed_length > self._max_tokens:
            allowed = f"at most max_tokens={self._max_tokens}"
            raise InvalidRequest("output", self.committed_length, allowed)
        try:
            draft_key(self._term, self.name)
        except ValueError as error:
            raise InvalidRequest("opening", self.opening, str(error)) from error

    # --- the text ---------------------------------------------------------------

    @property
    def name(self) -> DraftName:
        """Of the draft that the tail is."""
        return DraftName(self.opening, self._number)

    @property
    def key(self) -> int:
        """What draws of further tokens are keyed by."""
        return draft_key(self._term, self.name)

    @property
    def output_length(self) -> int:
        """Known tokens and tail."""
        return len(self.text) - self.prompt_length

    @property
    def tail_length(self) -> int:
        """Drafted tokens that are not known to be text."""
        return self.output_length - self.committed_length

    @property
    def untold(self) -> bool:
        """Whether there is a tail of which nothing has left."""
        return self._sent == 0 and self.tail_length > 0

    @property
    def room(self) -> int:
        """How many tokens may be drafted now."""
        length = len(self.text) - self.prompt_length
        room = min(self.committed_length + self.window, self._max_tokens) - length
        if room <= 0 or (self._last_ids and self._ends(length - 1)):
            return 0
        return room

    @property
    def due(self) -> bool:
        """Whether more is to be drafted behind this text."""
        return not self._rests and self.room > 0

    def set_window(self, window: int) -> None:
        """Draft so many tokens ahead of the known text at most; 0 = rest."""
        if window > self.window:
            self._go_on()
        self.window = window

    def take(self, position: int, tokens: Sequence[int], top_rows: bytes = b"") -> int | None:
        """Take in a step; how many leading tokens of the text stayed, None = it was known.

        `top_rows`: the target's predictions in it. Raises `OutOfStep`, and InvalidRequest for a
        text beyond max_tokens.
        """
        known = self.committed_length - position
        if known:
            tokens = self._fresh(position, known, tokens)
        if not tokens:
            return None
        if self.committed_length + len(tokens) > self._max_tokens:
            allowed = f"at most max_tokens={self._max_tokens}"
            raise InvalidRequest("output", self.committed_length + len(tokens), allowed)
        if top_rows:
            self._take_rows(top_rows)
        kept = self._adopt(tokens)
        self._go_on()
        return kept

    def try_again(self) -> None:
        """More is known of the text: what had nothing to draft behind it may have something now."""
        if self._tree is None and not self.tail_length:
            self._rests = False

    def give_up(self) -> int:
        """Drop the tail: what is drafted from now on has another name. The length that stays."""
        length = self.prompt_length + self.committed_length
        del self.text[length:], self._hashes[1:]
        self._laws, self._sources, self._sent = [], bytearray(), 0
        self._number += 1
        self._go_on()
        return length

    def _fresh(self, position: int, known: int, tokens: Sequence[int]) -> Sequence[int]:
        """Of a step's tokens those that are not known."""
        if known < 0:
            raise OutOfStep(f"a step at {position} of an output of {self.committed_length} tokens")
        again = tokens[:known]
        if common_prefix(self.text, again, self.prompt_length + position) < len(again):
            raise OutOfStep(f"a step at {position} says other tokens than those known")
        return tokens[known:]

    def _adopt(self, tokens: Sequence[int]) -> int:
        """Make tokens known; how much of the text stayed."""
        count, text = len(tokens), self.text
        start = self.prompt_length + self.committed_length
        same = common_prefix(text, tokens, start)
        self.committed_length += count
        if count > self._sent or same < count:
            self._number += 1
        self._sent = max(0, self._sent - count)
        if same == count:
            del self._hashes[:count], self._laws[:count], self._sources[:count]
            return len(text)
        del text[start + same :]
        text += tokens[same:]
        self._hashes = [extend_hash(self._hashes[same], tokens[same:])]
        self._laws, self._sources, self._sent = [], bytearray(), 0
        return start + same

    def _go_on(self) -> None:
        """More may be drafted; what follows a tree has another name."""
        self._rests = self._told = False
        if self._tree is not None:
            self._tree = None
            self._number += 1
            self._sent = 0

    def _ends(self, position: int) -> bool:
        """Whether nothing is drafted behind the output token at `position`."""
        if position < self._min_tokens or position < 0:
            return False
        return self.text[self.prompt_length + position] in self._last_ids

    def _take_rows(self, rows: bytes) -> None:
        """Keep the rows of a step for the next proposal, or of the newest two if none is made."""
        if fits(rows, self._width):
            both = self.top_rows + rows
            self.top_rows = both if fits(both, self._width) else rows

    # --- the draft --------------------------------------------------------------

    def absorb(self, proposed: Proposed, draft_ms: float = 0.0) -> bool:
        """Take in what was drafted from `text`; whether it is a draft by itself.

        A chain is cut at `room`, and behind a token that ends the draft, and becomes tail.
        """
        self._spent_ms += draft_ms
        self.top_rows = b""
        tree = proposed.tree
        if tree.parents is not None or proposed.reach:
            tree = tree.normal()
            if tree.parents is not None or proposed.reach:
                self._stand_before(tree, proposed)
                return True
        if tree.token_ids:
            self._extend(tree, proposed.sources)
        self._rests = proposed.final
        return False

    def _extend(self, tree: DraftTree, sources: bytes) -> None:
        count = self._length(tree.token_ids)
        tokens, hashed = tree.token_ids[:count], self._hashes[-1]
        self.text += tokens
        for token in tokens:
            hashed = extend_hash(hashed, (token,))
            self._hashes.append(hashed)
        self._laws += tree.q[:count] if tree.q is not None else (None,) * count
        self._sources += sources[:count] if sources else bytes(count)
        self._proposal = tree.proposal

    def _length(self, tokens: Sequence[int]) -> int:
        """How many of the tokens of a chain are drafted."""
        length = min(len(tokens), self.room)
        if self._last_ids:
            first = max(0, self._min_tokens - self.output_length)
            for index in range(first, length):
                if tokens[index] in self._last_ids:
                    return index + 1
        return length

    def _stand_before(self, tree: DraftTree, proposed: Proposed) -> None:
        """A draft by itself, behind the known text."""
        tail = self.tail_length
        self._number += 1
        self._rests = True
        self._told = False
        reach = proposed.reach and ((1.0,) * tail + proposed.reach)
        said = proposed.sources or (bytes(len(tree)) if any(self._sources) else b"")
        sources = bytes(self._sources) + said if said else b""
        self._tree = self._row(self._with_trunk(tree), 0, reach, sources)

    def _with_trunk(self, tree: DraftTree) -> DraftTree:
        """The tail, and a tree below its end."""
        tail = tuple(self.text[self.prompt_length + self.committed_length :])
        if not tail:
            return tree
        parents = (*range(-1, len(tail) - 1), *(len(tail) + above for above in tree.every_parent))
        q = None if tree.q is None else (*_all_of(tail, self._laws), *tree.q)
        return replace(tree, token_ids=(*tail, *tree.token_ids), parents=parents, q=q).normal()

    def taken(self) -> DraftRow | None:
        """What is to leave now; None = nothing."""
        if self._tree is not None:
            row = None if self._told else self._tree._replace(draft_ms=self._spent())
            self._told = True
            return row
        fresh = len(self.text) - self.prompt_length - self.committed_length - self._sent
        if not fresh and (self._told or not self._rests):
            return None
        final = self._rests or self.room == 0
        if self._synchronous and not final:
            return None
        self._told = final
        row = self._row(self._unsent(), self._sent, (), self._said(), self._spent(), final=final)
        self._sent += fresh
        return row

    def _unsent(self) -> DraftTree:
        """The chain of the tail's tokens that have not left."""
        tokens = tuple(self.text[self.prompt_length + self.committed_length + self._sent :])
        laws = self._laws[self._sent :]
        if any(laws):
            return DraftTree(tokens, None, _all_of(tokens, laws), Proposal.SAMPLED)
        return DraftTree(tokens, None, None, self._proposal)

    def _said(self) -> bytes:
        """Their sources; none if nobody named any."""
        sources = self._sources[self._sent :]
        return bytes(sources) if any(sources) else b""

    def _row(
        self,
        tree: DraftTree,
        ahead: int,
        reach: tuple[float, ...],
        sources: bytes,
        draft_ms: float = 0.0,
        *,
        final: bool = True,
    ) -> DraftRow:
        """A draft, or more of one, so many tokens ahead of the known text."""
        return DraftRow(
            self._handle,
            self.name,
            self.committed_length + ahead,
            self._hashes[ahead],
            tree,
            reach,
            sources,
            final,
            draft_ms,
        )

    def _spent(self) -> float:
        """Milliseconds of drafting since something left."""
        spent, self._spent_ms = self._spent_ms, 0.0
        return spent


def _all_of(tokens: Sequence[int], laws: Sequence[SparseRow | None]) -> tuple[SparseRow, ...]:
    """The law of each token; that of a copied one is all on itself."""
    pairs = zip(tokens, laws, strict=True)
    return tuple([law or SparseRow((token,), (1.0,)) for token, law in pairs])
