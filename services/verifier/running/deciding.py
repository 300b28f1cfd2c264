"""From the logits of a step to the tokens of each of its sessions.

GREEDY and COUPLED walk the target's own choices: any draft will do. In STANDARD and BLOCK the last
row is decided when the step ends, with the mailbox as it is then: a drawn token that has come for
the place behind the verified ones is judged by that row, in BLOCK as a block of its own, and
without one the target draws. Never both: a token that the target draws meets a draft by equality
alone. A draft that was not drawn is matched with the target's own token anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, islice

import torch
from torch import Tensor

from services.contract.frames import StepEnd
from services.contract.types import DraftTree
from services.engine.noise import Stream
from services.engine.sampling import NO_CHOICE, close_ones, draw, highest_logits
from services.verifier.judging import Unlawful, proposals, walks, why_none
from services.verifier.rules import Outcome, Proposed, Walk, judge
from services.verifier.running.mailbox import NO_TREE
from services.verifier.running.turns import Decided, Turn


def decide_turns(turns: Sequence[Turn], rounding: float = 0.0) -> list[Decided | Unlawful]:
    """What each of the turns brings, worked out together; what else, for one without a token."""
    plain, walked, drawn = [], [], []
    for turn in turns:
        if turn.session.argmax:
            plain.append(turn)
        elif turn.session.opening.mode.exact_match:
            walked.append(turn)
        else:
            drawn.append(turn)
    found = dict(zip(map(id, plain), _argmax(plain, rounding), strict=True))
    found |= dict(zip(map(id, walked), _exact(walked, rounding), strict=True))
    found |= dict(zip(map(id, drawn), _by_rejection(drawn), strict=True))
    return [found[id(turn)] for turn in turns]


# --- by exact match ---------------------------------------------------------------


def _argmax(turns: Sequence[Turn], rounding: float) -> list[Decided | Unlawful]:
    """The highest logits of all rows at once."""
    if not turns:
        return []
    logits = joined([turn.logits for turn in turns])
    chosen = highest_logits(logits).tolist()
    starts = list(accumulate([1 + len(turn.tree) for turn in turns], initial=0))
    paths = [_walk(turn, chosen, start) for turn, start in zip(turns, starts, strict=False)]
    reached = [
        start + row + 1 for path, start in zip(paths, starts, strict=False) for row in (-1, *path)
    ]
    close = iter(_close(logits, reached, chosen, rounding))
    return [
        _with_own(
            turn,
            path,
            chosen[start + (path[-1] + 1 if path else 0)],
            sum(islice(close, len(path))),
            next(close),
        )
        for turn, path, start in zip(turns, paths, starts, strict=False)
    ]


def _walk(turn: Turn, chosen: Sequence[int], start: int) -> tuple[int, ...]:
    """The nodes of a draft that carry the choice of the row before them; row 0 is at `start`."""
    tree = turn.tree
    if tree.parents is None:
        count = 0
        for token in tree.token_ids:
            if chosen[start + count] != token:
                break
            count += 1
        return tuple(range(count))
    path: list[int] = []
    at = -1
    for node, parent in enumerate(tree.parents):
        if parent == at and tree.token_ids[node] == chosen[start + at + 1]:
            path.append(node)
            at = node
    return tuple(path)


def _close(
    logits: Tensor, reached: Sequence[int], chosen: Sequence[int], rounding: float
) -> list[bool]:
    """Whether the choice of each row that was reached is a near-tie."""
    rows = logits if len(reached) == len(logits) else logits[reached]
    return close_ones(rows, [chosen[row] for row in reached], rounding)


def _with_own(
    turn: Turn, path: tuple[int, ...], token: int, near: int, token_near: bool
) -> Decided | Unlawful:
    """The accepted nodes and the target's own token behind them, unless there is none.

    `near`: how many of these nodes are near-ties; `token_near`: whether that token is one.
    """
    whole = _whole(turn, path)
    if token == NO_CHOICE or len(path) >= turn.room:
        if not path:
            return why_none(turn)
        return Decided(path, None, StepEnd.NONE, near)
    return Decided(path, token, StepEnd.BONUS if whole else StepEnd.RECOVERED, near + token_near)


def _whole(turn: Turn, path: Sequence[int]) -> bool:
    """Whether nothing of the draft stands behind these nodes."""
    if turn.tree.parents is None:
        return len(path) == len(turn.tree)
    return (path[-1] if path else -1) not in turn.tree.parents


def _exact(turns: Sequence[Turn], rounding: float) -> list[Decided | Unlawful]:
    return [_own(turn, *walked) for turn, walked in zip(turns, walks(turns, rounding), strict=True)]


def _own(turn: Turn, walked: Walk, close: set[int]) -> Decided | Unlawful:
    """`close`: the rows of near-ties, the one behind the accepted tokens among them."""
    path = walked.path
    leaf = path[-1] + 1 if path else 0
    return _with_own(turn, path, walked.final_token, len(close - {leaf}), leaf in close)


# --- by rejection -----------------------------------------------------------------


def _by_rejection(turns: Sequence[Turn]) -> list[Decided | Unlawful]:
    if not turns:
        return []
    last = proposals(turns)
    outcomes = judge(last)
    late = {i: _late(turn, outcomes[i]) for i, turn in enumerate(turns)}
    behind = {
        i: _behind(turns[i], last[i], outcomes[i], tree) for i, tree in late.items() if len(tree)
    }
    ends = dict(zip(behind, judge([*behind.values()]), strict=True)) if behind else {}
    tokens = _draw(
        {
            i: (behind.get(i, last[i]), ends.get(i, outcomes[i]))
            for i, turn in enumerate(turns)
            if len(outcomes[i].path) < turn.room and not (i in ends and ends[i].all_accepted)
        }
    )
    return [
        _judged(turn, outcomes[i], ends.get(i), late[i], tokens.get(i))
        for i, turn in enumerate(turns)
    ]


def _late(turn: Turn, outcome: Outcome) -> DraftTree:
    """What has come for the place behind what was accepted whole; nothing behind a stop.

    Of another draft than the verified one nothing is judged here.
    """
    mailbox = turn.session.mailbox
    said = [turn.tree.token_ids[node] for node in outcome.path]
    if not (outcome.all_accepted and mailbox.sampled and len(said) < turn.room):
        return NO_TREE
    if said and (mailbox.name != turn.taken.name or not turn.session.stops.isdisjoint(said)):
        return NO_TREE
    return mailbox.next_level(said)


def _behind(turn: Turn, proposed: Proposed, outcome: Outcome, late: DraftTree) -> Proposed:
    """The candidates of the last row, judged by it, with numbers of their own."""
    leaf = outcome.path[-1] + 1 if outcome.path else 0
    # Nobody reads the rows behind them.
    log_p = proposed.log_p[leaf].expand(1 + len(late), -1)

    def number(stream: Stream, row: int, candidate: int) -> float:
        return turn.number(stream, leaf + row, candidate)

    return Proposed(late, log_p, number, proposed.mode)


def _draw(lasts: Mapping[int, tuple[Proposed, Outcome]]) -> dict[int, int]:
    """The token behind what each outcome accepted."""
    if not lasts:
        return {}
    laws = torch.stack([outcome.law for _, outcome in lasts.values()])
    numbers = [asked.uniform(*outcome.final, 0) for asked, outcome in lasts.values()]
    return dict(zip(lasts, draw(laws, numbers), strict=True))


def _judged(
    turn: Turn, outcome: Outcome, end: Outcome | None, late: DraftTree, drawn: int | None
) -> Decided | Unlawful:
    """`end`: what the last row made of `late`; `drawn`: the token behind, if any."""
    path = outcome.path
    bad = outcome.bad_q_rows + (end.bad_q_rows if end is not None else 0)
    if drawn == NO_CHOICE and not path:
        return why_none(turn)
    if end is not None and end.all_accepted:
        path = (*path, len(turn.tree) + end.path[0])
    if drawn is None or drawn == NO_CHOICE:
        return Decided(path, None, StepEnd.NONE, 0, bad, late)
    whole = outcome.all_accepted and end is None
    return Decided(path, drawn, StepEnd.BONUS if whole else StepEnd.RECOVERED, 0, bad, late)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows [n, V] of all parts, without a copy where they lie one behind the other."""
    first, width = parts[0], parts[0].shape[-1]
    whole, at = first._base, first.data_ptr()
    row = width * first.element_size()
    if whole is None or not whole.is_contiguous() or whole.shape[-1] != width:
        return torch.cat([*parts])
    rows = 0
    for part in parts:
        if part.data_ptr() != at + rows * row or part._base is not whole:
            return torch.cat([*parts])
        rows += part.shape[0]
    start = (first.storage_offset() - whole.storage_offset()) // width
    return whole.view(-1, width)[start : start + rows]
