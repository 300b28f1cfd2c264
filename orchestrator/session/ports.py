"""What the driver needs from the outside, as protocols. Tests pass fakes."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.steering.rounds import Ending, Matched
from orchestrator.workers.placement import Wanted
from services.contract.errors import PacelineError
from services.contract.types import FinishReason, SessionStatus, WorkerDescription


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Every lookup names the tenant, so another tenant's session id is not found."""

    tenant: str
    session_id: str

    @property
    def name(self) -> str:
        """The session's name within the cluster."""
        return f"{self.tenant}/{self.session_id}"


@dataclass(frozen=True, slots=True)
class NewSession:
    """What is stored before any work is done on a session.

    `resolved`, opaque bytes, is what its request was resolved to (mode, sampling), so that
    another orchestrator goes on with the same values; the request itself, which may hold
    anything, is not kept. `digest` identifies its content.
    `ephemeral` sessions keep no text, tokens or prompt after their end. `index` and `n`: which of
    its request's completions it is, and of how many; this stays.
    """

    digest: str
    prompt: tuple[int, ...]
    seed: int
    owner: str
    resolved: bytes = b""
    target_fingerprint: str = ""
    ephemeral: bool = False
    index: int = 0
    n: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """A reader's call for a session; `number` grows with each call.

    A reader calls again when a server does not answer. That server may carry out the first
    call later; it must not take the session from the later call.
    """

    reader: str
    number: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A session in its owner's memory: everything handed to the store so far.

    `round` is the last one of `committed`; it began at `round_base`.
    """

    session: NewSession
    committed: tuple[int, ...]
    round: int = 0
    round_base: int = 0


class Holder(Protocol):
    """A session's owner here, as the store sees it."""

    def memory(self) -> Memory:
        """The session, to restore it to a store that lost it."""
        ...

    def on_refused(self, error: PacelineError) -> None:
        """This owner has lost the session: Fenced, SessionAborted or DataLoss."""
        ...


@dataclass(frozen=True, slots=True)
class Created:
    """`created` is False when an equal session existed; attach to that one."""

    created: bool
    term: int


@dataclass(frozen=True, slots=True)
class Outline:
    """What is short of a stored session, whatever its text.

    The lengths stay true when an ephemeral session has dropped its tokens. Times are the store's,
    in milliseconds. `index` and `n`: see `NewSession`. `size`: bytes that it takes to be read
    whole; 0: that was done.
    """

    status: SessionStatus
    term: int
    prompt_len: int
    committed_len: int
    seed: int
    finish_reason: FinishReason | None
    created_ms: int
    index: int = 0
    n: int = 1
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession(Outline):
    """A session as the store keeps it.

    `lease_until_ms` is 0 when nobody works on it. `relaxed`: more may have been emitted than is
    stored. `verifier`: the one that made its last tokens.
    """

    owner: str
    resolved: bytes
    digest: str
    target_fingerprint: str
    prompt: tuple[int, ...]
    committed: tuple[int, ...]
    ephemeral: bool
    matched_stop: Matched
    lease_until_ms: int
    relaxed: bool = False
    verifier: str = ""


@dataclass(frozen=True, slots=True)
class StoredRound:
    """One committed round: `tokens` tokens after output[:base_len]; opaque `record`."""

    term: int
    round: int
    base_len: int
    tokens: int
    record: bytes


class SessionKeeper(Protocol):
    """Where a live session is written: a store, or nowhere (`NullStore`)."""

    def hold(self, key: SessionKey, term: int, holder: Holder) -> None:
        """Make `holder` the session's owner here.

        The store renews its lease, restores the session to a server that lost writes, and
        tells the holder within about the lease time when it has lost the session.
        """
        ...

    def release(self, key: SessionKey, term: int) -> None:
        """The session has no owner here any more."""
        ...

    def commit(
        self,
        key: SessionKey,
        term: int,
        round: int,
        base_len: int,
        token_ids: Sequence[int],
        record: bytes = b"",
        verifier: str = "",
        end: Ending | None = None,
        rounds: int = 1,
    ) -> Awaitable[int]:
        """Append tokens of a round, or of several, after output[:base_len]; the length after it.

        `rounds`: as many as the session's commits hold on average, by which fewer are kept.
        `verifier`: the worker that has the text now. `end`: this round is the last, and the
        session ends with it, both or neither.

        `round` grows within a term. A repeated round with equal content changes
        nothing; with other content it raises StoreError.
        """
        ...

    def finish(
        self,
        key: SessionKey,
        term: int,
        committed_len: int,
        reason: FinishReason,
        matched_stop: Matched = None,
    ) -> Awaitable[None]:
        """End a session whose output has `committed_len` tokens; ABORT for one given up."""
        ...

    def pause(self, key: SessionKey, term: int) -> Awaitable[None]:
        """The session has no owner for now; a finished one stays finished."""
        ...


class SessionStore(SessionKeeper, Protocol):
    """Sessions that outlive an orchestrator.

    Writes are ordered by when the call is made, not by when it is awaited; replies
    resolve in that order. What is only read goes another way, which holds up no write, and
    comes after this store's earlier writes of the same session. Cancelling an awaitable
    does not withdraw its write. Every transition is idempotent.

    All raise StoreError when the store refuses, or stays away longer than its
    patience, and DataLoss for an unreadable record. Those that take a `term` also raise
    Fenced (a later term exists), SessionAborted, and DataLoss (the store has less than
    it acknowledged).

    With durability `relaxed`, `commit` and `finish` of a session that is held return
    at once; what they would raise goes to the holder.
    """

    def create(
        self, key: SessionKey, session: NewSession, call: Call | None = None
    ) -> Awaitable[Created]:
        """Store a new session with term 1, or find the equal one; `call`: who asked for it.

        Raises AlreadyExists when the id is taken by other content.
        """
        ...

    def acquire(
        self, key: SessionKey, owner: str, call: Call | None = None
    ) -> Awaitable[StoredSession]:
        """Own a session with the next term, even over a live lease.

        A finished or aborted session is returned as it is. Raises NotFound, and Fenced
        where a later call of the same reader was served, or another owner was faster.
        """
        ...

    def stood_still(self) -> None:
        """This process stalled: owners fenced meanwhile must learn it before they emit."""
        ...

    def attend(self, key: SessionKey, term: int, call: Call) -> Awaitable[int]:
        """Note that the owner in this term serves a call; no effect after it lost the session.

        The term that the session is in; 0: it is not known.
        """
        ...

    def abort(self, key: SessionKey) -> Awaitable[SessionStatus]:
        """End a session, whoever owns it; FINISHED if it had ended. Raises NotFound."""
        ...

    def look(self, key: SessionKey) -> Awaitable[Outline]:
        """Read what is short of a session, without touching it. Raises NotFound."""
        ...

    def get(self, key: SessionKey) -> Awaitable[StoredSession]:
        """Read a session whole without touching it, when there is room. Raises NotFound."""
        ...

    def rounds(self, key: SessionKey) -> Awaitable[tuple[StoredRound, ...]]:
        """The newest committed rounds, oldest first; empty when nothing is kept."""
        ...


class Workers(Protocol):
    """The workers, as a session sees them. Nothing here waits."""

    def place(self, wanted: Wanted) -> WorkerDescription | None:
        """The worker that suits best, or None."""
        ...

    def opening_s(self, worker: str, tokens: int) -> float:
        """Expected seconds to open a session with so many tokens of text on the worker."""
        ...
