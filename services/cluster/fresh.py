"""Answers that use nothing of earlier texts, and how to check that.

To measure what a user's first request sees, ask with `FRESH`: the session gets nothing of
others (no cached prefix, no phrase of the pool, no learned acceptance rates) and leaves nothing
behind. Two counters show if it did anyway: the cached tokens in an answer's usage, and the
tokens that drafters took from other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
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


async def recalled_tokens(addresses: Sequence[str], protocol: int = 2) -> int:
    """How many tokens these drafters, of this machine, have taken from other sessions' texts.

    Raises StartError when one of them does not answer in this protocol.
    """
    return sum([await _recalled(address, protocol) for address in addresses])


async def _recalled(address: str, protocol: int) -> int:
    rpcs = RPCS[Role.DRAFTER, protocol]
    async with open_channel(address) as channel:
        try:
            answer = await rpcs.stub(channel).Describe(rpcs.describe(), timeout=_ANSWER_S)
        except grpc.aio.AioRpcError as error:
            raise StartError(
                f"the drafter on {address} does not tell what it drafts from: {error.details()}"
            ) from None
    return int(answer.progress.recalled_tokens)


def require_fresh(what: str, results: Sequence[Measured], recalled: int) -> None:
    """Raise NotFresh, naming `what`, if these answers used anything of earlier texts.

    `recalled`: tokens that drafters took from other texts meanwhile.
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
