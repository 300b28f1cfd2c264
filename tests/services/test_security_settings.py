"""What the settings of a process become, and what is refused before anything slow is done."""

import pytest

from orchestrator.main import run
from orchestrator.settings import OrchestratorSettings
from services.cluster.flags import Flags
from services.contract.errors import StartError
from services.contract.types import Role
from services.runtime.settings import ServingSettings, WorkerSettings
from services.runtime.worker_main import tracing
from tests.certificates import Authority


@pytest.fixture
def files(tmp_path):
    return Authority(tmp_path).issue("some")


def served_by(files):
    return {"tls_cert": files.cert, "tls_key": files.key}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "give tls_cert and tls_key"),
        ({"tls_ca": "ca.pem"}, "tls_cert and tls_key"),
        ({"tls_cert": "none.pem", "tls_key": "none.key"}, "tls_cert: cannot read"),
        ({"cluster_token_file": "none"}, "give tls_cert and tls_key"),
    ],
)
def test_a_worker_beyond_loopback_is_refused_before_it_loads_anything(given, named):
    settings = WorkerSettings(worker_id="w", host="0.0.0.0", **given)
    with pytest.raises(StartError, match=named), tracing(settings, Role.VERIFIER):
        pytest.fail("it began")


def test_a_worker_with_tls_beyond_loopback_must_know_who_opens_links(files, tmp_path):
    token = tmp_path / "token"
    token.write_text("a-secret")
    settings = {"worker_id": "w", "host": "0.0.0.0", **served_by(files)}
    with (
        pytest.raises(StartError, match=r"tls_ca .*cluster_token_file"),
        tracing(WorkerSettings(**settings), Role.DRAFTER),
    ):
        pytest.fail("it began")
    for enough in ({"tls_ca": files.ca}, {"cluster_token_file": token}, {"insecure": True}):
        with tracing(WorkerSettings(**settings, **enough), Role.DRAFTER):
            pass


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"host": "0.0.0.0"}, "give tls_cert and tls_key"),
        ({"link_cert": "none.pem"}, "link_cert and link_key: give both or none"),
        ({"link_ca": "none.pem"}, "link_ca: cannot read none.pem"),
        ({"cluster_token_file": "none"}, "cluster_token_file: cannot read none"),
    ],
)
def test_an_orchestrator_says_at_once_which_setting_is_in_the_way(given, named):
    with pytest.raises(StartError, match=named):
        run(OrchestratorSettings(port=0, **given))


def test_health_needs_no_flag_for_any_host_and_an_ipv6_host_gets_its_brackets():
    settings = ServingSettings(health_port=0, health_host="0.0.0.0", metrics_host="0.0.0.0")
    assert settings.serving_options().health_address == "0.0.0.0:0"
    assert ServingSettings().serving_options().health_address is None
    assert ServingSettings(host="::1", port=7).serving_options().address == "[::1]:7"


def test_links_take_their_settings_from_flags_or_variables(files, monkeypatch):
    monkeypatch.setenv("PACELINE_LINK_CA", str(files.ca))
    monkeypatch.setenv("PACELINE_LINK_SERVER_NAME", "paceline-worker")
    flags = Flags("paceline orchestrator", "", OrchestratorSettings)
    flags.parse(["--link-cert", str(files.cert), f"--link-key={files.key}"])
    dialing = flags.read(OrchestratorSettings).dialing()
    assert dialing.tls.paths == files.paths
    assert dialing.server_name == "paceline-worker"
    assert OrchestratorSettings(link_ca=None).dialing().tls is None
