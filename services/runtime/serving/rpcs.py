"""What the service of a role is called, and takes and answers, in each protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.v1 import drafter_pb2 as drafter_1
from paceline.v1 import drafter_pb2_grpc as drafter_grpc_1
from paceline.v1 import verifier_pb2 as verifier_1
from paceline.v1 import verifier_pb2_grpc as verifier_grpc_1
from paceline.worker.v1 import drafter_pb2 as drafter_2
from paceline.worker.v1 import drafter_pb2_grpc as drafter_grpc_2
from paceline.worker.v1 import verifier_pb2 as verifier_2
from paceline.worker.v1 import verifier_pb2_grpc as verifier_grpc_2

from services.contract.types import Role
from services.contract.wire import DRAFTER_LINK, VERIFIER_LINK, Codec
from services.contract.wire.protocol2 import DRAFTER_LINK_2, VERIFIER_LINK_2


class WorkerRpcs(NamedTuple):
    """A service: its generated classes, and how its links speak.

    `tokenizer`: request and response of GetTokenizer, where there is one.
    """

    name: str
    codec: Codec[Any, Any]
    stub: Any
    mount: Any
    describe: Any
    described: Any
    tokenizer: tuple[Any, Any] | None = None


def _verifier(messages: Any, grpc: Any, codec: Codec[Any, Any], tokenizer: Any) -> WorkerRpcs:
    return WorkerRpcs(
        messages.DESCRIPTOR.services_by_name["VerifierService"].full_name,
        codec,
        grpc.VerifierServiceStub,
        grpc.add_VerifierServiceServicer_to_server,
        messages.VerifierServiceDescribeRequest,
        messages.VerifierServiceDescribeResponse,
        tokenizer,
    )


def _drafter(messages: Any, grpc: Any, codec: Codec[Any, Any]) -> WorkerRpcs:
    return WorkerRpcs(
        messages.DESCRIPTOR.services_by_name["DrafterService"].full_name,
        codec,
        grpc.DrafterServiceStub,
        grpc.add_DrafterServiceServicer_to_server,
        messages.DrafterServiceDescribeRequest,
        messages.DrafterServiceDescribeResponse,
    )


RPCS = {
    (Role.VERIFIER, 1): _verifier(
        verifier_1,
        verifier_grpc_1,
        VERIFIER_LINK,
        (verifier_1.GetTokenizerRequest, verifier_1.GetTokenizerResponse),
    ),
    (Role.VERIFIER, 2): _verifier(
        verifier_2,
        verifier_grpc_2,
        VERIFIER_LINK_2,
        (
            verifier_2.VerifierServiceGetTokenizerRequest,
            verifier_2.VerifierServiceGetTokenizerResponse,
        ),
    ),
    (Role.DRAFTER, 1): _drafter(drafter_1, drafter_grpc_1, DRAFTER_LINK),
    (Role.DRAFTER, 2): _drafter(drafter_2, drafter_grpc_2, DRAFTER_LINK_2),
}
"""By role and protocol."""
