"""From what a step decided to what is told of it: rows of frames, and who waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from services.contract.frames import NO_NAME, StepEnd, StepRow, WaitReason, pack
from services.contract.types import LogprobRow
from services.contract.worker_messages import Waiting
from services.verifier.rows import logprob_rows, told_rows
from services.verifier.running.session import RunningSession
from services.verifier.running.turns import Decided, Turn


def said(turn: Turn, decided: Decided) -> tuple[int, ...]:
    """The tokens that a turn brings, up to the first stop."""
    drafted = turn.tree.token_ids + decided.late.token_ids
    tokens = [drafted[node] for node in decided.path]
    if decided.token is not None:
        tokens.append(decided.token)
    stops = turn.session.stops
    if stops and not stops.isdisjoint(tokens):
        first = next(place for place, token in enumerate(tokens) if token in stops)
        del tokens[first + 1 :]
    return tuple(tokens)


def step_row(turn: Turn, decided: Decided, tokens: tuple[int, ...], started: float) -> StepRow:
    """What a turn brought, before its session takes it in; `started` in seconds."""
    session, taken = turn.session, turn.taken
    accepted = min(len(decided.path), len(tokens))
    path = decided.path[:accepted]
    judged, name = turn.tree.token_ids, taken.name
    age_ms = 1e3 * max(0.0, started - taken.arrived) if judged else 0.0
    sources = taken.sources
    if decided.late.token_ids:
        name = session.mailbox.name
        judged += decided.late.token_ids
        sources += bytes(len(decided.late)) if sources else b""
    queue_ms = 1e3 * max(0.0, started - session.ready_since)
    return StepRow(
        session.opening.handle,
        session.opening.opening,
        turn.base_len,
        tokens,
        accepted,
        judged,
        () if path == _FIRST[:accepted] else path,
        decided.end if len(tokens) > accepted else StepEnd.NONE,
        name if judged else NO_NAME,
        taken.draft_ms,
        age_ms,
        queue_ms,
        1e3 * (started - session.held_since) if session.held_since is not None else 0.0,
        sources,
        decided.near_ties,
        decided.bad_q_rows,
    )


_FIRST = tuple(range(1 << 16))


def logprobs(turn: Turn, decided: Decided, tokens: Sequence[int]) -> tuple[LogprobRow, ...]:
    """Of the raw logits at each token, where that was asked for."""
    top = turn.session.opening.sampling.logprobs
    return () if top is None else logprob_rows(turn.logits, _own_nodes(turn, decided), tokens, top)


def top_rows(turn: Turn) -> bytes:
    """What the target says at the rows of the draft, where that was asked for."""
    session = turn.session
    if not session.opening.top_rows:
        return b""
    return told_rows(session.opening, session.text[turn.last], turn.tree, turn.logits)


def state_rows(turn: Turn, decided: Decided, count: int) -> list[int]:
    """The rows of the tokens before each of `count` tokens."""
    return [0, *[node + 1 for node in _own_nodes(turn, decided)]][:count]


def _own_nodes(turn: Turn, decided: Decided) -> tuple[int, ...]:
    return tuple([node for node in decided.path if node < len(turn.tree)])


def stood_out(sessions: Iterable[RunningSession], step: int) -> dict[int, tuple[int, ...]]:
    """By link, how many sessions took no part in a step, by reason."""
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(WaitReason))
    for session in sessions:
        if session.served_in != step:
            counts[session.key[0]][session.reason - 1] += 1
    return {link: tuple(own) for link, own in counts.items()}


def who_waits(sessions: Iterable[RunningSession]) -> dict[int, Waiting]:
    """By link, whose sessions took part in no step since this was asked last, and why."""
    waiting: defaultdict[int, list[RunningSession]] = defaultdict(list)
    for session in sessions:
        if session.reported == session.steps:
            waiting[session.key[0]].append(session)
        session.reported = session.steps
    return {
        link: Waiting(
            pack("I", [own.key[1] for own in every]), bytes([own.reason for own in every])
        )
        for link, every in waiting.items()
    }
