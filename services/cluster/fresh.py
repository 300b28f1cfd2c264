"""Answers that use nothing of earlier texts, and how to check that.

To measure what a user's first request sees, ask with `FRESH`: the session gets nothing of
others (no cached prefix, no phrase of the pool, no learned acceptance rates) and leaves nothing
behind. Two counters show if it did anyway: the cached tokens in an answer's usage, and the
tokens that drafters took from other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import grpc
from paceline.v1 import drafter_pb2, drafter_pb2_grpc

from services.cluster.figures import Measured
from services.contract.errors import PacelineError, StartError
from services.runtime.serving import open_channel

FRESH: dict[str, Any] = {"ephemeral": True}
"""The options of a request that uses nothing of others and leaves nothing."""
_ANSWER_S = 10.0


class NotFresh(PacelineError):
    """A measured answer used something of earlier texts."""


class Recalled:
    """How many tokens some drafters have taken from other sessions' texts."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """`addresses`: of drafters on this machine."""
        self._addresses = tuple(addresses)
        self._stubs: dict[str, Any] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for address in self._addresses:
            channel = await self._stack.enter_async_context(open_channel(address))
            self._stubs[address] = drafter_pb2_grpc.DrafterServiceStub(channel)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def tokens(self) -> int:
        """Of all together. Raises StartError when one of them does not answer."""
        return sum([await self._ask(address) for address in self._addresses])

    async def _ask(self, address: str) -> int:
        asked = drafter_pb2.DrafterServiceDescribeRequest()
        try:
            answer = await self._stubs[address].Describe(asked, timeout=_ANSWER_S)
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
