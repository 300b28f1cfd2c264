"""In which order the answers of several completions reach a gateway."""

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.frontdoor.vllm_gateway.response import Answers
from orchestrator.session.answer import Chunk, Complete, Started
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import Ending
from services.contract.types import FinishReason


def events(index):
    """Of one completion, which says its own index."""
    end = Ending(FinishReason.LENGTH)
    return [
        Started("s", 3, 7, index),
        Chunk(0, (index,), (), completion=index),
        Complete(end, "", SpecTotals(), 3, 1, completion=index),
    ]


def told(order, *, stream):
    """What is sent with each end, where completions end in this order."""
    asked = engine.GenerateRequest(stream=stream, sampling_params=engine.SamplingParams(n=4))
    answers, sent = Answers(asked), []
    for index in order:
        parts = [response for event in events(index) for response in answers.add(event)]
        sent.append([part.complete.index for part in parts if part.HasField("complete")])
    return sent


def test_whole_answers_come_in_the_order_of_their_indices_as_soon_as_they_can():
    assert told([2, 0, 3, 1], stream=False) == [[], [0], [], [1, 2, 3]]
    assert told([0, 1, 2, 3], stream=False) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("order", [[2, 0, 3, 1], [3, 2, 1, 0]])
def test_in_a_stream_each_ends_when_it_does(order):
    assert told(order, stream=True) == [[index] for index in order]
