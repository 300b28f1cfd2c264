"""One reader of one live session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from orchestrator.session.answer import Chunk, Complete, Event, Started
from orchestrator.session.logprobs import unpack_row
from orchestrator.session.output import Prefix
from orchestrator.steering.driver import Driver


async def follow(driver: Driver, prefix: Prefix) -> AsyncGenerator[Event]:
    """The events of a session after what the reader has, at the reader's own pace.

    Logprobs of the prompt are for readers from the beginning on, while the session is at work.
    While nobody reads, the session is detached. Raises OffsetOutOfRange or DataLoss
    for a reader ahead of the output or of another one, and the error that ended the session.
    """
    output, spec = driver.output, driver.spec
    output.followers += 1
    driver.reattached()
    try:
        started = Started(spec.session, len(spec.prompt), spec.seed, spec.index)
        yield started
        if not prefix.offset:
            async for first, rows in output.prompt():
                ids = spec.prompt[first : first + len(rows)]
                numbers = tuple(map(unpack_row, rows))
                yield started._replace(prompt_offset=first, prompt_ids=ids, prompt_logprobs=numbers)
        async for delivery in output.follow(prefix):
            yield Chunk(
                delivery.offset,
                delivery.token_ids,
                "".join(delivery.pieces),
                tuple(map(unpack_row, delivery.logprobs)),
                delivery.rounds,
                delivery.pieces if spec.include_rounds else (),
                delivery.origins,
                spec.index,
            )
        assert output.ending is not None
        yield Complete(
            output.ending,
            output.text(),
            driver.totals,
            len(spec.prompt),
            output.length,
            driver.state.cached_tokens,
            spec.index,
        )
    finally:
        output.followers -= 1
        if not output.followers and not output.ended:
            driver.detached()


async def follow_alone(driver: Driver) -> AsyncGenerator[Event]:
    """The events of a session whose only reader this is: it ends when that reader leaves."""
    try:
        async with aclosing(follow(driver, Prefix())) as events:
            async for event in events:
                yield event
    finally:
        driver.abort()
