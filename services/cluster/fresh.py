"""Answers that use nothing of earlier texts, and how to check that.

To measure what a user's first request sees, ask with `FRESH`: the session gets nothing of
others (no cached prefix, no phrase of the pool, no learned acceptance rates) and leaves nothing
behind. Two counters show if it did anyway: the cached tokens in an answer's usage, and the
tokens that were drafted from other texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from services.cluster.figures import Measured
from services.contract.errors import PacelineError, StartError
from services.contract.types import Role
from services.runtime.serving import open_channel
from services.runtime.serving.rpcs import RPCS

FRESH: dict[str, Any] = {"ephemeral": True}
"""The options of a request that uses nothing of others and leaves nothing."""
_ANSWER_S = 10.0


class NotFresh(PacelineError):
    """A measured answer used something of earlier texts."""


async def recalled_tokens(workers: Iterable[tuple[str, Role]]) -> int:
    """How many tokens these workers, of this machine, have drafted from other sessions' texts.

    `workers`: the address and role of each. Raises StartError when one of them does not answer.
    """
    return sum([await _recalled(*worker) for worker in workers])


async def _recalled(address: str, role: Role) -> int:
    rpcs = RPCS[role]
    async with open_channel(address) as channel:
        try:
            answer = await rpcs.stub(channel).Describe(rpcs.describe(), timeout=_ANSWER_S)
        except grpc.aio.AioRpcError as error:
            who, why = f"the {role.value} on {address}", error.details()
            raise StartError(f"{who} does not tell what it drafts from: {why}") from None
    return int(answer.progress.recalled_tokens)


def require_fresh(what: str, results: Sequence[Measured], recalled: int) -> None:
    """Raise NotFresh, naming `what`, if these answers used anything of earlier texts.

    `recalled`: tokens that were drafted from other texts meanwhile.
    """
    cached = sum(one.complete.usage.cached_tokens for one in results)
    prompts = sum(one.complete.usage.prompt_tokens for one in results)
    found = []
    if cached:
        found.append(f"{cached} of {prompts} prompt tokens came from a cache")
    if recalled:
        found.append(f"{recalled} draft tokens came from what other sessions said")
    if found:
        raise NotFresh(
            f"{what} was to find nothing of the texts before it, and {' and '.join(found)}"
        )
