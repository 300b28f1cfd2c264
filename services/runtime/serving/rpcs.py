"""What the service of a role is called, and takes and answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.worker.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

from services.contract.types import Role
from services.contract.wire import DRAFTER_LINK, VERIFIER_LINK, Codec


class WorkerRpcs(NamedTuple):
    """A service: its generated classes, and how its links speak."""

    name: str
    codec: Codec[Any, Any]
    stub: Any
    mount: Any
    describe: Any
    described: Any


RPCS = {
    Role.VERIFIER: WorkerRpcs(
        verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name,
        VERIFIER_LINK,
        verifier_pb2_grpc.VerifierServiceStub,
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server,
        verifier_pb2.VerifierServiceDescribeRequest,
        verifier_pb2.VerifierServiceDescribeResponse,
    ),
    Role.DRAFTER: WorkerRpcs(
        drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name,
        DRAFTER_LINK,
        drafter_pb2_grpc.DrafterServiceStub,
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server,
        drafter_pb2.DrafterServiceDescribeRequest,
        drafter_pb2.DrafterServiceDescribeResponse,
    ),
}
