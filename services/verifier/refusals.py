"""Which commands a verifier refuses, before any work is done for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from services.contract.errors import BusyError, out_of_memory
from services.contract.sampling_checks import complaint
from services.contract.states import MOST_LAYERS, sound
from services.contract.types import DraftTree, FailureReason
from services.contract.worker_messages import StartVerify
from services.engine.structure import Compiled, Matcher, StructureError, Structures, TooCostly
from services.scheduling.turns import MOST
from services.verifier.judging import NothingAllowed

_log = logging.getLogger(__name__)


class Refusal(Exception):
    """One session is refused; becomes a SessionGone."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        self.reason = reason
        self.message = message
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can take: ids below `vocab_size`, texts up to `context` tokens."""

    vocab_size: int
    context: int
    trees: bool = True
    """Whether drafts may be trees."""


def check_open(opening: StartVerify, limits: Limits) -> None:
    """Raise Refusal unless this model can serve the session."""
    _check_sampling(opening, limits)
    _check_text(opening, limits)
    few = f"state_layers: more than {MOST_LAYERS}, or not ascending"
    _require(sound(opening.state_layers), few)
    _require(-MOST <= opening.priority <= MOST, f"priority: {opening.priority}, beyond {MOST}")


def ask_form(opening: StartVerify, structures: Structures | None, owner: str) -> Compiled | None:
    """The form that the session's output is to have, being compiled; None: any.

    Raises Refusal where this verifier keeps to none, Overloaded where too many are compiled.
    """
    wanted = opening.sampling.response_format
    if wanted is None:
        return None
    if structures is None:
        raise Refusal(
            FailureReason.UNSUPPORTED, "sampling.response_format: this verifier keeps to no format"
        )
    return structures.compiled(wanted, owner)


def open_matcher(opening: StartVerify, compiled: Compiled, structures: Structures) -> Matcher:
    """What keeps the session's output to a form that is done, in front of what is committed.

    Raises StructureError where the form cannot be kept to, Overloaded where that was not told.
    """
    wanted = opening.sampling.response_format
    return structures.follow(compiled, wanted.start if wanted else None)


def check_tree(tree: DraftTree, limits: Limits) -> None:
    """Raise Refusal unless it is a well-formed tree."""
    _require_vocabulary("tree.token_ids", tree.token_ids, limits)
    _require(limits.trees or tree.is_chain, "tree: this verifier's engine takes chains only")
    _check_parents(tree)


def explain(error: Exception) -> tuple[FailureReason, str]:
    """How a failure is told to the orchestrator; anything unforeseen goes to the log."""
    match error:
        case Refusal():
            return error.reason, error.message
        case BusyError():
            return FailureReason.CAPACITY, str(error)
        case TooCostly():
            return FailureReason.FORMAT_COST, f"sampling.response_format: {error}"
        case StructureError():
            return FailureReason.FORMAT, f"sampling.response_format: {error}"
        case NothingAllowed():
            return FailureReason.NOTHING_ALLOWED, str(error)
    if out_of_memory(error):
        return FailureReason.CAPACITY, "the device has no memory left for this session"
    _log.error("a session failed", exc_info=error)
    return FailureReason.INTERNAL, f"verification failed ({type(error).__name__})"


def _check_sampling(opening: StartVerify, limits: Limits) -> None:
    sampling = opening.sampling
    problem = complaint(sampling, opening.mode)
    _require(not problem, problem)
    _require_vocabulary("sampling.stop_token_ids", sampling.stop_token_ids, limits)
    _require_vocabulary("sampling.logit_bias", [token for token, _ in sampling.logit_bias], limits)
    _require_vocabulary("sampling.allowed_token_ids", sampling.allowed_token_ids, limits)
    _require_vocabulary("sampling.bad_words", [*chain.from_iterable(sampling.bad_words)], limits)
    wanted = sampling.response_format
    if wanted is not None and wanted.start is not None:
        field = "sampling.response_format.start.token_ids"
        _require_vocabulary(field, wanted.start.token_ids, limits)


def _check_text(opening: StartVerify, limits: Limits) -> None:
    _require(len(opening.prompt) > 0, "prompt: no tokens; at least one is needed")
    _require_vocabulary("prompt", opening.prompt, limits)
    _require_vocabulary("committed", opening.output, limits)
    _require(opening.score_from <= len(opening.prompt), "score_from: beyond the prompt")
    most = 0 if opening.score_from else opening.sampling.max_tokens
    given = len(opening.output)
    _require(given <= most, f"committed: {given} tokens, more than max_tokens {most}")
    total = len(opening.prompt) + most
    context = limits.context
    _require(total <= context, f"prompt + max_tokens: {total} tokens, the context has {context}")


def _check_parents(tree: DraftTree) -> None:
    if tree.parents is None:
        return
    given, needed = len(tree.parents), len(tree)
    _require(given == needed, f"tree.parents: {given} parents of {needed} tokens")
    for node, parent in enumerate(tree.parents):
        _require(-1 <= parent < node, f"tree.parents[{node}]: {parent} is not an earlier node")


def _require_vocabulary(field: str, ids: Sequence[int], limits: Limits) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < limits.vocab_size):
        message = f"{field}: an id is outside the vocabulary of {limits.vocab_size} tokens"
        raise Refusal(FailureReason.INVALID, message)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Refusal(FailureReason.INVALID, message)
