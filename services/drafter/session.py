"""What a drafter knows of one session: its text, epoch, window and turn. Pure.

Rules:

1.  text = prompt + committed output + tail. A tail token was drafted from
    exactly the text before it.
2.  A commit rolls back to the common prefix: of its tokens, those that equal
    the tail stay where they are, the rest replaces the tail. A tail that
    agrees with the whole commit survives it.
3.  A commit of a higher epoch is adopted, and the whole tail beyond the
    committed text is dropped, even if it agrees.
4.  A commit that is already known, or of a lower epoch and adding nothing,
    changes nothing. One that starts beyond the committed text is held until
    the commits before it are there.
5.  The committed text only grows. A commit that contradicts it is refused.
6.  The tail is at most `window` long, the output at most `max_tokens`, and, where
    drafts are matched exactly, nothing follows a token that ends the text. In
    `STANDARD` and `BLOCK` drafting goes on behind it; see `VerifyMode.exact_match`.
7.  What a verifier in the same process decided is taken in before the commit that tells it,
    where drafts are matched exactly and nothing is drafted beyond the committed text. A commit
    of a later epoch, or one that says otherwise, takes it back.
8.  Turns: an open, a commit that changes something, a verdict that was heard and a credit each
    start a turn (unless the window is 0), and each turn ends with one final draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.contract.errors import InvalidRequest
from services.contract.texts import common_prefix
from services.contract.top_rows import fits
from services.contract.types import (
    EMPTY_HASH,
    CommitDraft,
    Draft,
    DraftTree,
    OpenDraft,
    Verdict,
    extend_hash,
)

MAX_HELD_COMMITS = 64
MOST_AHEAD = 1
"""Rejections between the time when a block with an allowance leaves and its verdict: it is sent
while one other block is under way."""


class DraftSession:
    """The bookkeeping of one session; see the rules above."""

    __slots__ = (
        "_exact",
        "_hashes",
        "_held",
        "_last_ids",
        "_max_tokens",
        "_min_tokens",
        "_name",
        "_spent_ms",
        "_told",
        "_width",
        "committed_length",
        "drafting",
        "epoch",
        "first_epoch",
        "prompt_length",
        "text",
        "top_rows",
        "window",
    )

    def __init__(self, opened: OpenDraft) -> None:
        self._name = opened.session
        self._max_tokens = opened.sampling.max_tokens
        self._min_tokens = opened.sampling.min_tokens
        self._last_ids = frozenset(opened.last_ids)
        self._exact = opened.mode.exact_match
        self._held: list[CommitDraft] = []
        self._hashes = [EMPTY_HASH]
        self._spent_ms = 0.0
        self._width = opened.top_rows
        self.top_rows = b""
        """What the target said in blocks since the last proposal."""
        self.epoch = self.first_epoch = opened.epoch
        self.prompt_length = len(opened.prompt)
        self.text = list(opened.prompt)
        """Prompt + output."""
        self.committed_length = 0
        """Committed tokens of the output."""
        self._told = 0
        """Of these, what the orchestrator told; the others were heard of the verifier."""
        self.window = 0
        self.drafting = False
        """A turn is open: drafts are owed until a final one."""
        self._check_length(len(opened.committed))
        self._append(opened.committed)
        self.committed_length = self._told = len(opened.committed)
        self.credit(opened.window)

    @property
    def output_length(self) -> int:
        """Committed tokens and tail."""
        return len(self.text) - self.prompt_length

    @property
    def tail_length(self) -> int:
        """Drafted tokens that are not committed."""
        return self.output_length - self.committed_length

    @property
    def room(self) -> int:
        """How many tokens may be drafted now."""
        if self._ends(self.output_length - 1):
            return 0
        ahead = self.window - self.tail_length
        return max(0, min(ahead, self._max_tokens - self.output_length))

    def credit(self, window: int) -> None:
        """Set the window (0 = draft nothing) and start a turn."""
        self.window = window
        self.drafting = window > 0

    def commit(self, command: CommitDraft) -> int | None:
        """Absorb a commit; the number of leading text tokens that stayed, None = no change.

        Raises `InvalidRequest` for a commit that contradicts the committed text,
        passes max_tokens, or is one too many beyond a gap.
        """
        self._take_rows(command.top_rows)
        if command.base_len > self.committed_length:
            self._hold(command)
            return None
        kept = self._apply(command)
        while (held := self._next_held()) is not None:
            later = self._apply(held)
            if later is not None:
                kept = later if kept is None else min(kept, later)
        if kept is not None:
            self.drafting = self.window > 0
        return kept

    def hear(self, verdict: Verdict) -> None:
        """Take in what the verifier in this process decided, if that is what comes next.

        A rejection voids what was drafted: the commit that tells it has the next epoch. A block
        with an allowance has the epoch of the time when it left.
        """
        late = MOST_AHEAD if verdict.taken is not None else 0
        follows = 0 <= self.epoch - verdict.epoch <= late
        follows = follows and verdict.base_len == self.committed_length
        if not self._exact or self.tail_length or not follows or not verdict.token_ids:
            return
        if self.committed_length + len(verdict.token_ids) > self._max_tokens:
            return
        self._append(verdict.token_ids)
        self.committed_length += len(verdict.token_ids)
        self.epoch += not verdict.all_accepted
        self.drafting = self.window > 0
        self._take_rows(verdict.top_rows)

    def absorb(
        self,
        tree: DraftTree,
        final: bool,
        draft_ms: float,
        reach: tuple[float, ...] = (),
        sources: bytes = b"",
    ) -> Draft | None:
        """Take a proposal drafted from `text`; the draft to send, None for nothing to say.

        A chain is cut after a token that ends the draft and at `room`, then
        extends the tail. A tree, or whatever has a `reach`, leaves the text alone and ends
        the turn. The draft's time counts the proposals before it that said nothing.
        """
        self._spent_ms += draft_ms
        tree = tree if reach else self._cut(tree.normal())
        first, prefix_hash = self.output_length, self._hashes[-1]
        if tree.parents is None:
            self._append(tree.token_ids)
        final = final or tree.parents is not None or self.room == 0
        if not len(tree) and not final:
            return None
        self.drafting = not final
        spent, self._spent_ms = self._spent_ms, 0.0
        return Draft(
            self._name,
            self.epoch,
            self.committed_length,
            first,
            prefix_hash,
            tree,
            final,
            spent,
            reach,
            sources[: len(tree)],
        )

    # --- inside ---------------------------------------------------------------

    def _take_rows(self, rows: bytes) -> None:
        """Keep the rows of a block for the next proposal, or of the newest two if none is made."""
        if fits(rows, self._width):
            both = self.top_rows + rows
            self.top_rows = both if fits(both, self._width) else rows

    def _apply(self, command: CommitDraft) -> int | None:
        taken_back = self._take_back(command)
        known = self.committed_length - command.base_len
        if not self._agrees(command, known):
            return None
        self._told = max(self._told, command.base_len + len(command.token_ids))
        fresh = command.token_ids[known:]
        newer = command.epoch > self.epoch
        if not fresh and not newer:
            return taken_back
        self._check_length(self.committed_length + len(fresh))
        kept = self._adopt(fresh, newer, max(self.epoch, command.epoch))
        return kept if taken_back is None else min(kept, taken_back)

    def _take_back(self, command: CommitDraft) -> int | None:
        """Give up what was only heard, where a commit does not bear it out: rule 7."""
        if self._told == self.committed_length or command.epoch < self.epoch:
            return None
        start, tokens = self.prompt_length + command.base_len, command.token_ids
        same = command.base_len + common_prefix(self.text, tokens, start)
        borne_out = same == command.base_len + len(tokens) and command.epoch == self.epoch
        keeps = max(self._told, same)
        if borne_out or keeps >= self.committed_length:
            return None
        self.committed_length = keeps
        self._truncate(self.prompt_length + keeps)
        return len(self.text)

    def _adopt(self, fresh: Sequence[int], newer: bool, epoch: int) -> int:
        start = self.prompt_length + self.committed_length
        same = common_prefix(self.text, fresh, start)
        kept = len(self.text)
        if newer or same < len(fresh):
            kept = start + same
            self._truncate(kept)
            self._append(fresh[same:])
        self.committed_length += len(fresh)
        self.epoch = epoch
        return kept

    def _agrees(self, command: CommitDraft, known: int) -> bool:
        start = self.prompt_length + command.base_len
        again = command.token_ids[:known]
        if common_prefix(self.text, again, start) == len(again):
            return True
        if command.epoch < self.epoch:
            return False
        raise InvalidRequest("commit.token_ids", "other tokens", "the text already committed")

    def _hold(self, command: CommitDraft) -> None:
        if len(self._held) >= MAX_HELD_COMMITS:
            allowed = f"at most {self.committed_length}, the committed length"
            raise InvalidRequest("commit.base_len", command.base_len, allowed)
        self._held.append(command._replace(states=b""))
        self._held.sort(key=lambda held: (held.base_len, held.epoch))

    def _next_held(self) -> CommitDraft | None:
        if self._held and self._held[0].base_len <= self.committed_length:
            return self._held.pop(0)
        return None

    def _check_length(self, committed: int) -> None:
        if committed > self._max_tokens:
            raise InvalidRequest("committed", committed, f"at most max_tokens={self._max_tokens}")

    def _ends(self, position: int) -> bool:
        """Whether nothing is drafted behind the output token at `position`."""
        if position < self._min_tokens or position < 0:
            return False
        return self.text[self.prompt_length + position] in self._last_ids

    def _cut(self, tree: DraftTree) -> DraftTree:
        if tree.parents is not None:
            return tree
        length = min(len(tree), self.room)
        first_stop = max(0, self._min_tokens - self.output_length)
        for index in range(first_stop, length):
            if tree.token_ids[index] in self._last_ids:
                length = index + 1
                break
        q = None if tree.q is None else tree.q[:length]
        return replace(tree, token_ids=tree.token_ids[:length], q=q)

    def _append(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)
        for token in tokens:
            self._hashes.append(extend_hash(self._hashes[-1], (token,)))

    def _truncate(self, length: int) -> None:
        del self.text[length:]
        del self._hashes[length - self.prompt_length + 1 :]
