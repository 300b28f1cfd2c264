"""Several completions by the published client: one stream, and after a break one for each."""

import grpc
import paceline
import pytest
from paceline import Chunk
from paceline.v1 import inference_pb2 as pb

from tests.services.breaking_inference import (
    BREAKS,
    CUT,
    SEED,
    Break,
    BreakingService,
    assert_whole,
    connected,
    fail,
    status,
)

pytestmark = pytest.mark.usefixtures("short_waits")


class SeveralService(BreakingService):
    """Sends the events of completions in turn; sessions know their seeds."""

    async def Generate(self, request, context):
        if request.n < 2:
            async for message in super().Generate(request, context):
                yield message
            return
        self._note(request, context)
        ending = self._ending()
        names = [f"{request.request_id}.{index}" for index in range(request.n)]
        if not (ending and ending.lost):
            self.cluster.sessions |= set(names)
        messages = [
            numbered(message, index, name)
            for step in zip(*(self._messages(pb.GenerateResponse, 0) for _ in names), strict=True)
            for index, (message, name) in enumerate(zip(step, names, strict=True))
        ]
        for message in messages[: len(messages) if ending is None else ending.after]:
            yield message
        if ending is not None and ending.how is not CUT:
            await fail(context, ending.how)


def numbered(message, index, name):
    event = getattr(message, message.WhichOneof("event"))
    event.index = index
    if message.WhichOneof("event") == "started":
        event.session_id, event.seed = name, (SEED + index) % 2**64
    return message


@pytest.fixture(autouse=True)
def several(monkeypatch):
    monkeypatch.setattr("tests.services.breaking_inference.BreakingService", SeveralService)


def own(events, index):
    return [event for event in events if event.index == index]


async def test_awaited_they_are_records_by_index(cluster):
    async with connected(cluster) as (client, service):
        made = await client.generate("hi", n=3, request_id="r")
    assert [one.session_id for one in made] == ["r.0", "r.1", "r.2"]
    assert [one.seed for one in made] == [SEED, SEED + 1, SEED + 2]
    assert [(one.index, one.text) for one in made] == [(i, cluster.text) for i in range(3)]
    assert [request.n for request in service.requests] == [3]


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("after", range(15))
async def test_wherever_the_stream_breaks_each_goes_on_by_itself(cluster, after, how):
    cluster.plan.append(Break(after, BREAKS[how]))
    async with connected(cluster) as (client, service):
        events = [event async for event in client.generate("hi", n=3, request_id="r")]
    for index in range(3):
        assert_whole(own(events, index), cluster)
    again = service.requests[1:]
    # Later calls of one reader: the first, carried out late, takes no session from them.
    calls = [told["paceline-call"].split("/") for told in service.metadata]
    assert [number for _, number in calls] == ["1"] + ["2"] * len(again)
    assert len({reader for reader, _ in calls}) == 1
    if after:
        ended = max(0, after - 12)
        assert sorted(one.session_id for one in again) == [f"r.{i}" for i in range(ended, 3)]
    else:
        assert [one.n for one in again] == [3]
    assert cluster.aborted == []


async def test_what_was_lost_before_a_token_came_begins_again_with_its_seed(cluster):
    cluster.plan.append(Break(2, lost=True))
    async with connected(cluster) as (client, service):
        events = [event async for event in client.generate("hi", n=3, request_id="r")]
    for index in range(3):
        assert_whole(own(events, index), cluster)
    begun = {
        one.request_id: (one.sampling.seed, one.HasField("n"))
        for one in service.requests[1:]
        if isinstance(one, pb.GenerateRequest)
    }
    assert begun == {f"r.{index}": (SEED + index, False) for index in range(3)}


async def test_a_refusal_is_raised_and_a_gap_is_the_servers_fault(cluster):
    cluster.plan.append(Break(0, status(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")))
    async with connected(cluster) as (client, _):
        with pytest.raises(paceline.InvalidArgument):
            await client.generate("hi", n=3)


@pytest.mark.parametrize("n", [0, 17, -1])
async def test_a_number_that_no_server_takes_is_refused_at_once(cluster, n):
    async with connected(cluster) as (client, service):
        with pytest.raises(paceline.InvalidArgument, match="allowed is 1 to 16"):
            client.generate("hi", n=n)
    assert not service.requests


async def test_one_of_one_is_a_session_as_without_a_number(cluster):
    async with connected(cluster) as (client, service):
        [made] = await client.generate("hi", n=1, request_id="r")
    assert (made.session_id, made.text) == ("r", cluster.text)
    assert [one.request_id for one in service.requests] == ["r"]


async def test_a_caller_that_leaves_aborts_the_request(cluster):
    async with connected(cluster) as (client, _):
        async with client.generate("hi", n=3, request_id="r") as stream:
            async for event in stream:
                if isinstance(event, Chunk):
                    break
        await client.close()
    assert cluster.aborted == ["r"]
