"""When a draft ends by itself: the exit threshold of Draft & Verify. Pure.

Zhang et al., 2309.08168: drafting stops after a token whose probability, by the
skipping model's raw softmax, is under a threshold. The token is part of the draft.
The threshold follows the acceptance seen: with m its running mean, after each
verification

    m  <- β1 m + (1 - β1) accepted / drafted
    th' = th + ε   if m < α
          th       else if the draft reached its greatest length
          th - ε   else
    th <- β2 th + (1 - β2) th'

with the published numbers below and m = 0 at first. A token after the first
rejection counts as drafted, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: α, the acceptance aimed at; ε, β1, β2.
TARGET_ACCEPTANCE = 0.9
STEP = 0.01
ACCEPTANCE_MEMORY = 0.5
THRESHOLD_MEMORY = 0.9


@dataclass(frozen=True, slots=True)
class Exit:
    """The threshold of one session now.

    `acceptance`: the running mean m. Not `adaptive`: the threshold stays.
    """

    threshold: float
    adaptive: bool = True
    acceptance: float = 0.0

    def after(self, confidence: float) -> bool:
        """Whether a token with this probability ends its draft."""
        return confidence < self.threshold

    def verified(self, accepted: int, drafted: int, full: bool) -> Exit:
        """The next state: `drafted` >= 1 tokens were verified, `accepted` of them stayed.

        `full`: the draft did not end by the threshold.
        """
        if not self.adaptive:
            return self
        kept = ACCEPTANCE_MEMORY
        acceptance = kept * self.acceptance + (1 - kept) * accepted / drafted
        if acceptance < TARGET_ACCEPTANCE:
            aim = self.threshold + STEP
        else:
            aim = self.threshold if full else self.threshold - STEP
        threshold = THRESHOLD_MEMORY * self.threshold + (1 - THRESHOLD_MEMORY) * aim
        return replace(self, threshold=threshold, acceptance=acceptance)
