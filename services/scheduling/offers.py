"""What a verifier's policy is asked before a step, and told behind it.

A session offers what it could have verified; the policy says how much of it is. How much follows
from counts, clocks, load and what was judged before: never from a drawn token that is not judged
yet, or from its distribution.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol


class Offer(NamedTuple):
    """What a session could have verified in a step.

    `tokens` of a chain, or nodes of a tree, parents first; 0 = it has no draft. `reach`: the chance
    that the target reaches each, falling, as its drafter says; none = not known. `depth`: of a
    tree, its levels. `exact`: drafts are matched exactly. `source`: who drafts. `window`: the most
    that may be verified. `final`: nothing more comes before the text grows. `pacing`: the policy
    that was asked for; empty = none. `draft_ms`: what drafting a token took. `drafted_for`: there
    is somebody who drafts for the session.
    """

    key: Hashable
    tenant: Hashable
    tokens: int
    tree: bool = False
    exact: bool = True
    source: str = ""
    reach: tuple[float, ...] = ()
    window: int = 0
    final: bool = False
    pacing: str = ""
    draft_ms: float = 0.0
    depth: int = 0
    drafted_for: bool = False


class Allotment(NamedTuple):
    """How many of the offered tokens a step verifies.

    `hold_s`: the session waits for more of them instead, for so many seconds at most since it
    could have been in a step. It is offered again whenever more came.
    """

    tokens: int = 0
    hold_s: float = 0.0


class Judged(NamedTuple):
    """What became of a draft: `accepted` of its `judged` tokens, in a tree those of `path`."""

    key: Hashable
    judged: int
    accepted: int
    reach: tuple[float, ...] = ()
    path: tuple[int, ...] = ()
    tree: bool = False


class Pacing(Protocol):
    """A policy: how much of their drafts a step verifies, for all its sessions together."""

    def allot(self, offers: Sequence[Offer], /) -> list[Allotment]:
        """Of each offer, in their order, what the next step verifies."""

    def judged(self, own: Judged, /) -> None:
        """What became of a session's draft in a step."""

    def drafted(self, key: Hashable, tokens: int, ms: float, final: bool, /) -> None:
        """A draft came for a session, in time or late: its tokens, and what drafting them took."""

    def advanced(self, key: Hashable, tokens: int, seconds: float, /) -> None:
        """A step brought a session so many tokens, so long after the one before."""

    def stepped(self, sessions: int, extra: int, ms: float, /) -> None:
        """A step without prompts, of so many sessions and `extra` draft tokens, took `ms`."""

    def window(self, key: Hashable, most: int, /) -> int:
        """How many tokens a session's drafter is to be ahead, `most` at most; 0 = it rests."""

    def forget(self, key: Hashable, /) -> None:
        """A session is gone."""
