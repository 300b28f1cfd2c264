"""What the sessions of this process learned of drafts, kept for those to come."""

from __future__ import annotations

from orchestrator.core.pacing import Experience, Policy
from orchestrator.core.state import SessionConfig, State
from services.common.types import VerifyMode

# The drafting method, how its drafts are verified, and whether they are trees: requests
# can name no others than those served, so there are only a few.
Kind = tuple[str, VerifyMode, bool]


class Experiences:
    """One experience for each kind of drafts."""

    def __init__(self) -> None:
        self._known: dict[Kind, Experience] = {}

    def seeded(self, config: SessionConfig, policy: Policy) -> Policy:
        """The policy of a new session, with what those before it learned."""
        return self._of(config).seeded(policy)

    def remember(self, state: State) -> None:
        """Take in what a session learned that ends here."""
        if state.config.method:
            self._known[_kind(state.config)] = self._of(state.config).joined(state.policy)

    def _of(self, config: SessionConfig) -> Experience:
        return self._known.get(_kind(config), Experience())


def _kind(config: SessionConfig) -> Kind:
    return config.method, config.mode, config.num_candidates > 1
