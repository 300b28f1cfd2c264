"""One reader of one live session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from orchestrator.core.events import AbortRequested, Detached, Reattached
from orchestrator.frontdoor.grpc import replies
from orchestrator.session.driver import SessionDriver
from orchestrator.session.logprobs import unpack_row
from orchestrator.session.output import Prefix


async def follow(driver: SessionDriver, prefix: Prefix) -> AsyncGenerator[replies.Event]:
    """The events of a session after what the reader has, at the reader's own pace.

    While nobody reads, the session is detached. Raises OffsetOutOfRange or DataLoss
    for a reader ahead of the output or of another one, and the error that ended the session.
    """
    output, spec = driver.output, driver.spec
    output.followers += 1
    driver.feed(Reattached(driver.now()))
    try:
        yield replies.started(spec)
        async for delivery in output.follow(prefix):
            yield replies.chunk(
                delivery.offset,
                delivery.token_ids,
                delivery.pieces,
                tuple(map(unpack_row, delivery.logprobs)),
                delivery.rounds,
                delivery.origins,
                spec.include_rounds,
            )
        assert output.ending is not None
        yield replies.complete(
            output.ending,
            len(spec.prompt),
            output.length,
            output.text(),
            driver.totals,
            driver.state.cached_tokens,
        )
    finally:
        output.followers -= 1
        if not output.followers and not output.ended:
            driver.feed(Detached(driver.now()))


async def follow_alone(driver: SessionDriver) -> AsyncGenerator[replies.Event]:
    """The events of a session whose only reader this is: it ends when that reader leaves."""
    try:
        async with aclosing(follow(driver, Prefix())) as events:
            async for event in events:
                yield event
    finally:
        driver.feed(AbortRequested(driver.now()))
