"""Steps are taken.

1. Steps of an opening are taken in the order of the text. One that begins before its end is doubled
   and dropped; one that begins behind it, or has logprobs that are invalid or that were not asked
   for, means that this verifier has lost the session: it is opened again.
2. The output ends at the first stop token, stop string or the length limit. What was decided
   behind it is dropped, and the workers are released at once.
3. A step is a round: it is recorded as it was judged, whoever else was in its commit.
"""

from __future__ import annotations

from itertools import chain

from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.credit import averaged
from orchestrator.steering.events import StepsTaken
from orchestrator.steering.logprobs import rows_fit
from orchestrator.steering.openings import has_started, refuse_verifier
from orchestrator.steering.ports import Taken
from orchestrator.steering.rounds import Commit, Ending, RoundRecord, SourceCount
from orchestrator.steering.state import Attached, Pace, Turn
from orchestrator.steering.storing import add
from services.contract.frames import NO_NAME, StepEnd, StepRow
from services.contract.types import DraftSource, FinishReason, Origin, source_of

_ACCEPTED = Origin.ACCEPTED
_KNOWN = bytes(DraftSource) + bytes(256 - len(DraftSource))
"""The source that each byte stands for; an unknown one is unspecified."""
_OWN = {StepEnd.RECOVERED: Origin.RECOVERED, StepEnd.BONUS: Origin.BONUS}


def on_steps(turn: Turn, event: StepsTaken) -> None:
    """Absorb the steps that follow the text; leave a verifier that lost it."""
    verifier = turn.verifier
    if verifier is None or verifier.worker != event.worker:
        return
    rows, wrong = _following(turn, verifier, event.taken)
    if rows:
        turn.heard_at = turn.now
        if not verifier.opened:
            has_started(turn, verifier)
        if turn.verifiers.failures:
            turn.verifiers = turn.verifiers._replace(failures=0)
        _measure(turn, event.lag_s, rows)
        _absorb(turn, verifier, rows)
    if wrong and turn.phase is Phase.RUNNING:
        refuse_verifier(turn, wrong)


def _following(turn: Turn, verifier: Attached, taken: tuple[Taken, ...]) -> tuple[list[Taken], str]:
    """The steps that follow the text one by one, and what is wrong with the next one."""
    end = len(turn.committed)
    rows: list[Taken] = []
    for one in taken:
        row = one.row
        if row.opening != verifier.opening or row.position < end:
            continue
        if row.position > end or not row.tokens:
            return rows, "its steps do not follow the text"
        if not _logprobs_fit(turn.config, row):
            return rows, "its logprobs are not what was asked for"
        rows.append(one)
        end += len(row.tokens)
    return rows, ""


def _logprobs_fit(config: SessionConfig, row: StepRow) -> bool:
    """One row per token if they were asked for, with no more alternatives than asked for."""
    asked = config.sampling.logprobs
    if asked is None:
        return not row.logprobs
    whole = len(row.logprobs) == len(row.tokens)
    return whole and rows_fit(row.logprobs, asked, config.vocab_size)


def _measure(turn: Turn, lag_s: float, rows: list[Taken]) -> None:
    pace, step_ms = turn.pace, rows[-1].facts.step_ms
    step = averaged(pace.step, 1e-3 * step_ms) if step_ms > 0 else pace.step
    tokens = sum([len(one.row.tokens) for one in rows]) / len(rows)
    lag, tokens = averaged(pace.lag, lag_s), averaged(pace.tokens, tokens)
    turn.pace = Pace(step, pace.store, lag, tokens)


def _absorb(turn: Turn, verifier: Attached, rows: list[Taken]) -> None:
    tokens = tuple(chain.from_iterable([one.row.tokens for one in rows]))
    keep, ending = _cut(turn, tokens)
    add(turn, _commit(turn, verifier, rows, tokens[:keep], ending))
    if ending is not None:
        turn.phase = Phase.FINISHING
        turn.release_all()


def _cut(turn: Turn, tokens: tuple[int, ...]) -> tuple[int, Ending | None]:
    """How many tokens are left before the first ending of the output, and that ending."""
    sampling = turn.config.sampling
    keep, ending = len(tokens), None
    room = sampling.max_tokens - len(turn.committed)
    if keep >= room:
        keep, ending = room, Ending(FinishReason.LENGTH)
    if stops := sampling.stop_token_ids:
        stopped = next((i for i in range(keep) if tokens[i] in stops), None)
        if stopped is not None:
            keep = stopped + 1
            ending = Ending(FinishReason.STOP, tokens[stopped])
    if (find := turn.config.find_stop) is not None:
        # The text has what went to the store.
        waiting = turn.pending.token_ids if turn.pending is not None else ()
        if (text := find(waiting + tokens[:keep])) is not None:
            keep = text.keep - len(waiting)
            ending = Ending(FinishReason.STOP, text.text)
    return keep, ending


def _commit(
    turn: Turn,
    verifier: Attached,
    rows: list[Taken],
    tokens: tuple[int, ...],
    ending: Ending | None,
) -> Commit:
    records: list[RoundRecord] = []
    origins: list[Origin] = []
    left, began = len(tokens), turn.round_at
    for one in rows:
        row = one.row
        emitted = min(left, len(row.tokens))
        if not emitted:
            break
        left -= emitted
        records.append(_record(turn, verifier, one, emitted, 1 + len(records), began))
        began = records[-1].started_at
        origins += [_ACCEPTED] * min(row.accepted, emitted)
        if emitted > row.accepted:
            origins += [_OWN[row.end]] * (emitted - row.accepted)
    logprobs = tuple(chain.from_iterable([one.row.logprobs for one in rows]))[: len(tokens)]
    base = len(turn.committed)
    return Commit(tuple(records), base, tokens, tuple(origins), logprobs, ending)


def _record(
    turn: Turn, verifier: Attached, taken: Taken, emitted: int, number: int, began: float
) -> RoundRecord:
    """`began`: when the round before did, which this one did not before it."""
    row, facts = taken.row, taken.facts
    took_s = 1e-3 * (row.queue_ms + facts.step_ms)
    return RoundRecord(
        round=turn.rounds + number,
        epoch=row.opening,
        base_len=row.position,
        draft_tokens=len(row.judged),
        accepted_tokens=row.accepted,
        emitted_tokens=emitted,
        draft_ms=row.draft_ms,
        verify_ms=facts.step_ms,
        queue_ms=row.queue_ms,
        round_ms=1e3 * took_s,
        batch_size=facts.sessions,
        drafter=_drafter(turn, row) if row.judged else "",
        verifier=verifier.worker,
        mode=turn.config.mode,
        # A frame may have been read late.
        started_at=max(began, facts.heard_at - took_s),
        ended_at=facts.heard_at,
        bad_q_rows=row.bad_q_rows,
        near_ties=row.near_ties,
        rejected=_rejected(row),
        sources=_by_source(turn.config, row) if row.judged else (),
        hold_ms=row.hold_ms,
        age_ms=row.age_ms,
    )


def _drafter(turn: Turn, row: StepRow) -> str:
    """Who made the draft; empty: a drafter that has left."""
    if row.name == NO_NAME:
        return turn.verifier.worker if turn.verifier is not None else ""
    drafter = turn.drafter
    return drafter.worker if drafter and drafter.opening == row.name.opening else ""


def _rejected(row: StepRow) -> tuple[int, ...]:
    if not row.path:
        return row.judged[row.accepted :]
    taken = frozenset(row.path)
    return tuple([token for node, token in enumerate(row.judged) if node not in taken])


def _by_source(config: SessionConfig, row: StepRow) -> tuple[SourceCount, ...]:
    """The judged tokens and the accepted ones, by source, for statistics alone.

    A token has the source that the drafter names, else that of the session's method.
    """
    if not row.sources:
        return (SourceCount(source_of(config.method), len(row.judged), row.accepted),)
    sources = row.sources.translate(_KNOWN)
    path = row.path or range(row.accepted)
    taken = bytes([sources[node] for node in path])
    return tuple(
        [SourceCount(one, sources.count(one), taken.count(one)) for one in sorted(set(sources))]
    )
