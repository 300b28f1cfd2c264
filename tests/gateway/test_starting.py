"""The flag that serves gateways: off, on, and on without the extra."""

import os
from pathlib import Path

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.settings import OrchestratorSettings
from services.cluster.flags import Flags
from services.cluster.specs import ClusterOptions, Site, orchestrator_specs
from tests.gateway.kit import gateway_stub
from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import known_verifier, refused
from tests.processes.conftest import run


async def test_without_the_flag_there_is_no_such_service():
    async with (
        cluster([await known_verifier()], [], PATIENT) as running,
        gateway_stub(running.address) as front,
    ):
        end = await refused(front.HealthCheck(engine.HealthCheckRequest()))
    assert end.code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("wanted", [True, False])
def test_a_local_cluster_tells_its_orchestrators_whatever_the_environment_says(
    tmp_path, monkeypatch, wanted
):
    monkeypatch.setenv("PACELINE_VLLM_ENGINE", str(not wanted))
    options = ClusterOptions("m", pacings=("eager", "fixed"), vllm_engine=wanted)
    specs = orchestrator_specs(options, Site(1, tmp_path, "redis://127.0.0.1:1", (0,)))
    assert [settings_of(spec.argv).vllm_engine for spec in specs] == [wanted, wanted]


def settings_of(argv: tuple[str, ...]) -> OrchestratorSettings:
    flags = Flags("paceline orchestrator", "", OrchestratorSettings)
    words = argv[argv.index("orchestrator") + 1 :]
    flags.parse(words[: words.index("--tether")])
    return flags.read(OrchestratorSettings)


def test_without_the_extra_the_flag_ends_the_start_with_one_line_that_names_it(tmp_path: Path):
    missing = tmp_path / "smg_grpc_proto"
    missing.mkdir()
    (missing / "__init__.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    flags = ("--port", "0", "--vllm-engine")
    done = run("orchestrator", *flags, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode != 0
    [line] = done.stderr.strip().splitlines()
    assert "vllm_engine: needs the extra gateway, pip install 'paceline[gateway]'" in line
