"""Each row of the page's table of statuses, through the real gateway; what it shows an engine."""

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import grpc
import openai
import pytest
import pytest_asyncio

from services.contract.errors import (
    AlreadyExists,
    DeadlinePassed,
    Draining,
    Impossible,
    NoWorker,
    Overloaded,
    PacelineError,
)
from tests.gateway.overheard import Front, front_of, rows_under

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

KEY = "what-clients-of-the-gateway-show"
MOST_TRIES = 5

STATUSES: dict[str, tuple[tuple[PacelineError, ...], int, bool]] = {
    "RESOURCE_EXHAUSTED": ((Overloaded("too many sessions", 0.1),), 429, True),
    "UNAVAILABLE": ((Draining("stops", 0.1), NoWorker("none", 0.1)), 503, True),
    "ALREADY_EXISTS": ((AlreadyExists("session 'a' is at work already"),), 409, False),
    "DEADLINE_EXCEEDED": ((DeadlinePassed("over"),), 504, True),
    "FAILED_PRECONDITION": ((Impossible("the form allows no token"),), 400, False),
}
"""The errors that have a status, what HTTP says of it, and whether it is tried again."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def front(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    log = tmp_path_factory.mktemp("smg") / "log"
    async with front_of(log, f"--api-key={KEY}", key=KEY) as made:
        yield made


def failing(front: Front, error: PacelineError) -> Any:
    """While this lasts every request ends so before its first token."""

    async def refuse(*_: Any) -> Any:
        raise error

    return patch.object(front.running.inference, "generate_once", refuse)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", STATUSES)
async def test_a_status_becomes_what_the_page_says(front: Front, status: str, stream: bool):
    errors, http, again = STATUSES[status]
    for error in errors:
        with failing(front, error), pytest.raises(openai.APIStatusError) as caught:
            await front.complete(stream=stream)
        assert caught.value.status_code == http
        tries = len(front.ears.asked)
        assert 1 < tries <= MOST_TRIES if again else tries == 1, f"{tries} tries"


async def test_a_drain_in_the_middle_of_a_stream_is_an_error_event(front: Front):
    begin = front.running.inference.generate_once

    async def cut(*arguments: Any) -> Any:
        return first_of(await begin(*arguments))

    async def first_of(events: Any) -> Any:
        yield await anext(events)
        yield await anext(events)
        await events.aclose()
        raise Draining("stops")

    with patch.object(front.running.inference, "generate_once", cut):
        stream = await front.complete(stream=True, max_tokens=200)
        with pytest.raises(openai.APIError) as caught:
            assert [part async for part in stream]
    assert "send the request again" in str(caught.value)


async def test_after_all_that_the_gateway_serves_as_before(front: Front):
    done = await front.complete(max_tokens=5, extra_body={"ignore_eos": True})
    assert done.usage.completion_tokens == 5


async def test_every_row_of_the_page_is_tried():
    rows = [row[0].strip("`") for row in rows_under("gRPC status")]
    assert rows == list(STATUSES)
    assert all(hasattr(grpc.StatusCode, row) for row in rows)
    told = {row[0].strip("`"): row[2] for row in rows_under("gRPC status")}
    assert [one for one, (_, http, _) in STATUSES.items() if str(http) not in told[one]] == []


async def test_an_engine_is_shown_no_key(front: Front):
    await front.complete()
    assert "Generate" in front.ears.called
    assert [name for name in front.ears.metadata if "authorization" in name] == []
    assert KEY not in str(front.ears.metadata)


async def test_a_client_without_the_gateways_key_is_refused(front: Front):
    with pytest.raises(openai.AuthenticationError):
        await front.client.with_options(api_key="another").completions.create(
            model=front.model, prompt="the law"
        )
