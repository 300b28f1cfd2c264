"""What a drafting method is: one small class, told only what drafting needs.

The text of every session (prompt and output, committed and drafted) is owned
by the core. A method keeps what it derives from the text (KV, an index) and
follows it: `rewind` says from where on the text was replaced, and each `Ask`
shows the text as it is now. So a method never decides what the text is, and
one that catches up with `Ask.text` cannot skip a token or take one twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from services.contract.states import NO_STATES, StateShape
from services.contract.types import (
    DraftTree,
    OpenDraft,
    VerifyMode,
    WorkerDescription,
    sampled_capability,
    states_capability,
    tree_capability,
)

SessionKey = tuple[int, Any]
"""(link number, the session's name there): two orchestrators may use the same names.

The name is a handle; where a verifier in this process lends K/V, the name that it is lent by.
"""


@dataclass(frozen=True, slots=True)
class Ask:
    """One session that may be drafted further.

    `text` is prompt + output, the output being committed tokens and the tail.
    It is a live view: read it now, do not keep it. `prompt_length` and
    `committed_length` are lengths of leading parts of `text`, the latter with
    the prompt. `draft_key`: what a draft's random draws are keyed by; of a session no two drafts
    have the same. `room` >= 1 is the greatest depth a proposal may have. `top_rows`: what the
    target said in the blocks since the last proposal; see `services.contract.top_rows`.
    """

    key: SessionKey
    draft_key: int
    text: Sequence[int]
    prompt_length: int
    committed_length: int
    room: int
    top_rows: bytes = b""

    @property
    def position(self) -> int:
        """Output index of the next token."""
        return len(self.text) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Proposed:
    """The answer to one `Ask`.

    A chain becomes part of the text at once (cut after a stop token and at
    `room`); a tree does not, and nothing is asked after it until a commit.
    No tokens and not `final`: not there yet, ask again (a prompt in chunks, a
    tree in the making). `final`: nothing more can be drafted from this text. `waits`: not
    before something happens elsewhere in this process. `fed`: tokens of a prompt that
    entered KV without completing it, for the trace. `recalled`: how many of the tokens come
    from texts of other sessions. `reach`: of a tree, the chance that each
    node is reached, falling; with it even a chain is a tree, and none of it becomes text.
    `sources`: the `DraftSource` of each token, a byte each; none = that of the method.
    """

    tree: DraftTree = field(default_factory=DraftTree)
    final: bool = False
    fed: int = 0
    waits: bool = False
    recalled: int = 0
    reach: tuple[float, ...] = ()
    sources: bytes = b""


@dataclass(frozen=True, slots=True)
class KVUsage:
    """Tokens a method holds reserved and can hold; zeros for a method without KV.

    `budget`: whose they are. Methods on one engine say the same, and count once. `copied`: tokens
    of prompts that the method copied from other sessions' K/V so far, in place of reading them.
    """

    used: int = 0
    capacity: int = 0
    budget: object = None
    copied: int = 0


def total(usages: Sequence[KVUsage]) -> KVUsage:
    """All of them together, each budget once."""
    distinct = {id(usage.budget or usage): usage for usage in usages}.values()
    return KVUsage(
        sum(one.used for one in distinct),
        sum(one.capacity for one in distinct),
        copied=sum(usage.copied for usage in usages),
    )


class Drafter(Protocol):
    """One drafting method, serving many sessions. Called from one thread."""

    @property
    def modes(self) -> frozenset[VerifyMode]:
        """The modes this method has a lawful proposal for."""

    @property
    def samples(self) -> bool:
        """Whether its drafts in `STANDARD` and `BLOCK` are draws, sent with their law."""

    @property
    def trees(self) -> bool:
        """Whether it drafts more than one candidate per node when asked to."""

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """`worker` with what this method binds it to (model, tokenizer, context)."""

    def usage(self) -> KVUsage:
        """KV tokens in use."""

    def open(self, key: SessionKey, opening: OpenDraft) -> None:
        """Make room for a session. Cheap: no forward.

        Raises `Overloaded` when there is no room for it, `InvalidRequest` when
        it can never be served.
        """

    def rewind(self, key: SessionKey, length: int) -> None:
        """The first `length` tokens of the text stay, what followed is gone."""

    def close(self, key: SessionKey) -> None:
        """Forget a session and free what it held."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """Draft for all sessions together; one answer per ask, in order.

        An exception leaves every session as it was: the core asks again for
        each session alone, and closes those that fail alone.
        """

    def idle(self, asks: Iterable[Ask]) -> bool:
        """Use a moment in which no session owes a draft; False = nothing to do before a command.

        A command that comes meanwhile waits, so it is short: a forward at most. `asks`:
        sessions of this method, whose `room` may be 0. Raises nothing.
        """


@runtime_checkable
class TakesStates(Protocol):
    """What a method has besides that drafts from states of the target; see `states`."""

    @property
    def needed_states(self) -> StateShape:
        """The states that it needs; without layers it needs none, and is given none."""

    def anchor(self, key: SessionKey, position: int, states: bytes) -> None:
        """Whole rows of states at committed tokens of the text, from `position` on.

        They come after the commit that brought the token behind the last of them, and before the
        next `propose`. Some may never come, and some twice; `rewind` voids those from its length
        on. Cheap: no forward.
        """


def states_needed(drafter: object) -> StateShape:
    """The states that a method needs, if it needs any."""
    return drafter.needed_states if isinstance(drafter, TakesStates) else NO_STATES


def capabilities(drafters: Mapping[str, Drafter]) -> Iterator[str]:
    """What these methods, by name, are able to beside drafting greedy chains."""
    for name, drafter in drafters.items():
        if drafter.samples:
            yield sampled_capability(name)
        if drafter.trees:
            yield tree_capability(name)
        if states_needed(drafter).layers:
            yield states_capability(name)
