"""What the rejection rules are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from services.contract.types import DraftTree, VerifyMode
from services.engine.noise import Stream


@dataclass(frozen=True, slots=True)
class Proposed:
    """One block to judge by rejection.

    `log_p` [1 + n, V], float32 or float64: the target's log-law at the root (row 0)
    and after each of the n draft tokens. `uniform(stream, row, candidate)` is in
    [0, 1). `mode` is STANDARD or BLOCK; a tree that is no chain is judged by
    recursive rejection in either.
    """

    tree: DraftTree
    log_p: Tensor
    uniform: Callable[[Stream, int, int], float]
    mode: VerifyMode


@dataclass(frozen=True, slots=True)
class Outcome:
    """The accepted draft tokens `path` (indices in the draft) and the law of what follows.

    `law` [V] float64 sums to 1: at a rejection that of the recovered token, at a
    leaf (`all_accepted`) that of the bonus. Whoever emits the token draws it with
    `uniform(*final, 0)`; `final` is (stream, row). `bad_q_rows`: rows of q that
    were missing or no law.
    """

    path: tuple[int, ...]
    all_accepted: bool
    law: Tensor
    final: tuple[Stream, int]
    bad_q_rows: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a walk stands while it is judged: at `row`, behind `path`.

    After a rejection, `kept` [N] is what is left of the target's mass at q's tokens,
    or `token` the target's own sample. With neither, nothing was rejected so far.
    """

    path: tuple[int, ...] = ()
    row: int = 0
    kept: Tensor | None = None
    token: int | None = None
