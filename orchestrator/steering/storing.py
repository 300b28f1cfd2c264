"""What was decided is stored, then emitted, and lets the verifier go on.

1. One commit of a session is on its way to the store at a time, unless the session stops; what
   comes meanwhile is joined to the next one.
2. Order of effects: emit what is stored, persist what waits, grant.
3. The end of a session is emitted with its last tokens.
"""

from __future__ import annotations

from orchestrator.steering.config import Phase
from orchestrator.steering.credit import averaged, grant
from orchestrator.steering.events import Emit, Finish, Persist, Persisted, Suspend
from orchestrator.steering.rounds import Commit
from orchestrator.steering.state import Turn


def add(turn: Turn, commit: Commit) -> None:
    """Tokens were decided."""
    turn.committed += commit.token_ids
    turn.rounds += len(commit.records)
    turn.round_at = commit.record.started_at
    turn.pending = commit if turn.pending is None else _joined(turn.pending, commit)
    store(turn)


def _joined(first: Commit, second: Commit) -> Commit:
    return Commit(
        first.records + second.records,
        first.base_len,
        first.token_ids + second.token_ids,
        first.origins + second.origins,
        first.logprobs + second.logprobs,
        second.ending,
    )


def store(turn: Turn, *, behind: bool = False) -> None:
    """Store what waits for it, if nothing is on its way; `behind`: whatever is."""
    if turn.pending is not None and (behind or turn.storing is None):
        turn.storing, turn.pending, turn.storing_since = turn.pending, None, turn.now
        turn.actions.append(Persist(turn.storing))


def on_persisted(turn: Turn, event: Persisted) -> None:
    """Emit what the store has acknowledged, store the next, and let the verifier go on."""
    commit = turn.storing
    if commit is None or event.round < commit.record.round:
        return
    turn.storing = None
    turn.stored = commit.base_len + len(commit.token_ids)
    took = turn.now - turn.storing_since
    turn.pace = turn.pace._replace(store=averaged(turn.pace.store, took))
    turn.actions.append(Emit(commit))
    if commit.ending is not None:
        turn.phase = Phase.DONE
        turn.actions.append(Finish(commit.ending))
        return
    store(turn)
    if turn.phase is Phase.RUNNING:
        grant(turn)
    elif turn.gone is not None and turn.storing is None:
        turn.phase = Phase.SUSPENDED
        turn.actions.append(Suspend(*turn.gone))
