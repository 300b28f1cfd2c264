"""Drafting from texts: no model, no torch, any tokenizer.

Where more than one candidate is asked for, and drafts are matched exactly, one small tree from
all sources; see `small_tree` and `mixture`. Elsewhere chains; see `chains`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.contract.types import (
    OpenDraft,
    VerifyMode,
    WorkerDescription,
    estimate_capability,
    rows_capability,
)
from services.drafter.methods.ngram.chains import ChainLengths, ChainSession
from services.drafter.methods.ngram.small_tree import Informant, SmallTrees, TreeSession
from services.drafter.methods.ngram.text_pool import Archive
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey


class NgramDrafter:
    """Drafts what followed before, in this text and in those of the same scope.

    `small`: what makes trees, with the texts of all sessions that share them (`_shared_scope`).
    `archive`: where these are kept and come back from.
    """

    modes = frozenset(VerifyMode)
    samples = False
    trees = True

    def __init__(
        self,
        lengths: ChainLengths | None = None,
        archive: Archive | None = None,
        small: SmallTrees | None = None,
    ) -> None:
        self._lengths = lengths or ChainLengths()
        self._archive = archive
        self._small = SmallTrees() if small is None else small
        self._sessions: dict[SessionKey, ChainSession | TreeSession] = {}

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Works with any tokenizer, unless there is an n-gram file, which is of one."""
        able = (*worker.capabilities, estimate_capability("ngram"), rows_capability("ngram"))
        file = self._small.file
        if file is None or worker.tokenizer_fingerprint:
            return replace(worker, capabilities=able)
        return replace(
            worker,
            capabilities=able,
            tokenizer_fingerprint=file.tokenizer_fingerprint,
            vocab_size=file.vocab_size,
        )

    def usage(self) -> KVUsage:
        """No KV."""
        return KVUsage()

    def open(self, key: SessionKey, opening: OpenDraft, informant: Informant | None = None) -> None:
        """An empty index; the text is indexed by the first step.

        `informant`: a draft model with a word in the session's trees.
        """
        scope, pool = _shared_scope(opening), self._small.pool
        if self._archive is not None and scope and not pool.of(scope):
            self._archive.load(scope)
        if opening.num_candidates > 1 and opening.mode.exact_match:
            self._sessions[key] = self._small.open(opening, scope, informant)
        else:
            self._sessions[key] = ChainSession(opening, scope, pool, self._lengths)

    def rewind(self, key: SessionKey, length: int) -> None:
        """Forget what was indexed beyond `length`."""
        self._sessions[key].rewind(length)

    def close(self, key: SessionKey) -> None:
        """Drop the index; the output becomes text to look up."""
        session = self._sessions.pop(key, None)
        if session is not None and session.scope:
            self._small.pool.learn(session.scope, session.output)
            if self._archive is not None:
                self._archive.keep(session.scope, session.output)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """One tree or chain for each session."""
        if self._archive is not None and (kept := self._archive.arrived()) is not None:
            # One at each step: drafts must not wait for all that a tenant ever said.
            self._small.pool.learn(*kept)
        return [self._sessions[ask.key].propose(ask) for ask in asks]

    def idle(self, asks: Iterable[Ask]) -> bool:  # noqa: ARG002
        """There is nothing beside drafting."""
        return False


def _shared_scope(opening: OpenDraft) -> str:
    """Whose texts a session shares; empty = nobody's.

    None where drafts are judged by rejection: of two sessions with one seed the second
    would be drafted what the first one's random numbers brought, and which of its own
    it uses, the same ones, would hang on that draft. Where drafts are matched exactly
    (greedy, coupled), no draft moves the text.
    """
    return opening.phrase_scope if opening.mode.exact_match else ""
