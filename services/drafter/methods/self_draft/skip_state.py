"""What the skipping drafter keeps of one session beside what any model drafter keeps.

KV rule: the prompt is read by the whole model, the output by the skipping one, all of it
with one mask. So K/V is a function of text and mask, and no layer ever attends to a token
that it did not read: a prompt's last tokens and the first ones of the output never share
a step, and with another mask the output is read again.

Exit rule: where drafts are matched exactly, a token that the skipping model is not sure
of ends its draft, which is not gone on with before that token is committed or gone. A
draft in `STANDARD` or `BLOCK` has the length that was asked for; see
`VerifyMode.exact_match`.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.texts import common_prefix
from services.contract.types import OpenDraft
from services.drafter.comb import Level
from services.drafter.methods.model.model_state import ModelSession
from services.drafter.methods.model.stepping import Feed
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.protocol import Ask, Proposed
from services.engine.port import KVCache


class SkipSession(ModelSession):
    """One session of the skipping drafter."""

    def __init__(
        self,
        opening: OpenDraft,
        cache: KVCache,
        vocab_size: int,
        longest: int,
        exit_rule: Exit,
    ) -> None:
        super().__init__(opening, cache, vocab_size, longest)
        self.exit = exit_rule
        self._exits = opening.mode.exact_match
        self._prompt_length = len(opening.prompt)
        self._decided = len(opening.prompt) + len(opening.output)
        """Length of the text whose drafts are counted."""
        self._tail: list[int] = []
        """First candidates drafted after that, until they are committed or gone."""
        self._exit_at = 0
        """Length of the text at the end of a draft that ended by the threshold."""

    def follow(self, ask: Ask) -> None:
        """Also count what was verified since the last ask."""
        super().follow(ask)
        if ask.committed_length > self._decided:
            self._note_verified(ask)
        self._decided = ask.committed_length
        self._tail = [*ask.text[ask.committed_length :], *self.unsent]
        if len(ask.text) < self._exit_at:
            self._exit_at = 0

    def may_draft(self, ask: Ask) -> bool:
        """Not before the end of an ended draft is decided."""
        return self._exit_at <= ask.committed_length and super().may_draft(ask)

    def feed(self, ask: Ask, most: int) -> Feed:
        """Also never prompt and output in one step."""
        unread = ask.prompt_length - self.cache.length
        return super().feed(ask, min(most, unread) if unread > 0 else most)

    def ends(self, level: Level) -> bool:
        """Also after a token that the skipping model was not sure of."""
        return super().ends(level) or (self._exits and self.exit.after(level.confidence))

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:
        """Also remember what is drafted, and where a draft ended by the threshold."""
        proposed = super().absorb(levels, ask)
        [level] = levels
        if level.token_ids:
            self._tail.append(level.token_ids[0])
            if self.ends(level):
                self._exit_at = self._decided + len(self._tail)
        return proposed

    def forget_output(self) -> None:
        """The mask is another one: the output is to be read again, by that one."""
        if self.cache.length > self._prompt_length:
            self.cache.rollback(self._prompt_length)
            self.caught_up = False

    def _note_verified(self, ask: Ask) -> None:
        """Take the tokens committed since into the threshold.

        A commit that departs from the draft decides all of it, one that agrees
        decides the tokens that it holds.
        """
        fresh = ask.text[self._decided : ask.committed_length]
        accepted = common_prefix(fresh, self._tail)
        rejected = accepted < min(len(fresh), len(self._tail))
        drafted = len(self._tail) if rejected else accepted
        if drafted:
            ended = self._decided + drafted == self._exit_at
            self.exit = self.exit.verified(accepted, drafted, full=not ended)
