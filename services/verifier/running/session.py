"""One session that a verifier runs.

It could be in a step while all of this holds: its text but the last token is in K/V, its form is
there, its output has not ended and is shorter than its limit.
"""

from __future__ import annotations

from services.contract.frames import WaitReason
from services.contract.types import VerifyMode
from services.contract.worker_messages import StartVerify
from services.engine.structure import Compiled
from services.scheduling.turns import STEPS, Claim
from services.verifier.fed_text import FedText
from services.verifier.running.mailbox import Mailbox
from services.verifier.running.output import Output

Key = tuple[int, int]
"""(link number, handle)."""


class RunningSession(FedText):
    """One session of one link. `opening` is the command that opened it."""

    def __init__(
        self,
        link: int,
        opening: StartVerify,
        now: float,
        form: Compiled | None = None,
        number: int = 0,
    ) -> None:
        """Without a cache: see `Caches.open`. `number` grows from session to session."""
        super().__init__((link, opening.handle), opening, now, form, number)
        sampling = opening.sampling
        self.output = Output(self.text, len(opening.prompt))
        self.mailbox = Mailbox(opening.first_drafts)
        self.limit, self.window = opening.limit, opening.window
        self.depth = opening.depth or opening.window
        self.stops = frozenset(sampling.stop_token_ids)
        self.ended = bool(opening.output) and opening.output[-1] in self.stops
        self.length = len(self.output)
        """Of its output."""
        self.max_tokens = sampling.max_tokens
        self.steps = 0
        """That it was in, of this opening."""
        self.served_in = 0
        """The last of the engine's steps that it was in."""
        self.served = 0
        """The number of its last turn, of all turns; a tenant's sessions exchange theirs."""
        self.ready_since = now
        """When it could first have been in its next step; in seconds."""
        self.advanced_at = now
        """When its text grew last; in seconds."""
        self.held = False
        """Whether the policy holds it back for its draft."""
        self.held_since: float | None = None
        """When it was first, for its next step; in seconds."""
        self.hold_s = 0.0
        """For how long at most, behind `ready_since`."""
        self.reported = -1
        """Its steps when it was last told who waits."""
        self.told_window: int | None = None
        """How far its drafter was told to be ahead; None: it is to be told."""
        self.told_rows = b""
        """What the target said at the rows of its last draft."""
        self.drafted_for = opening.drafted_for
        """Whether a drafter has it."""
        self.drafts_here = False
        """Whether the verifier drafts for it by itself."""
        edited = sampling.logit_bias or sampling.limits_tokens or self.history is not None
        self.plain = opening.mode is VerifyMode.GREEDY and not edited
        """Whether its tokens are the highest logits, once `min_tokens` are there."""

    @property
    def tenant_of_turns(self) -> Claim:
        """Its claim to the next step."""
        return Claim(self.tenant, self.priority, self.served_in, STEPS)

    @property
    def room(self) -> int:
        """Tokens that may still follow."""
        return self.max_tokens - self.length

    @property
    def runs(self) -> bool:
        """Whether tokens can follow without more credit."""
        return not self.ended and self.length < self.limit and self.length < self.max_tokens

    @property
    def ready(self) -> bool:
        """Whether it could be in a step now."""
        return (
            self.filled
            and self.form is None
            and not self.ended
            and self.length < self.limit
            and self.length < self.max_tokens
        )

    @property
    def argmax(self) -> bool:
        """Whether its tokens are the highest logits."""
        if not self.plain or self.matcher is not None:
            return False
        return not self.stops or self.length >= self.opening.sampling.min_tokens

    @property
    def reason(self) -> WaitReason:
        """Why it takes no part in a step."""
        if self.preempted:
            return WaitReason.KV
        if not self.filled:
            return WaitReason.PROMPT
        if self.form is not None:
            return WaitReason.FORMAT
        if self.ended or self.room <= 0:
            return WaitReason.ENDED
        if not self.runs:
            return WaitReason.CREDIT
        if self.held:
            return WaitReason.HOLD
        return WaitReason.FORMAT if self.heavy else WaitReason.TURN

    def grant(self, limit: int, now: float) -> None:
        """Its output may get so long."""
        if limit > self.limit:
            if self.length >= self.limit:
                self.ready_since = now
            self.limit = limit

    def grew(self, tokens: tuple[int, ...], now: float) -> None:
        """Its output has grown by these tokens."""
        self.output.extend(tokens)
        self.length += len(tokens)
        self.mailbox.follow(tokens)
        self.ended = tokens[-1] in self.stops
        self.ready_since, self.held, self.held_since = now, False, None
