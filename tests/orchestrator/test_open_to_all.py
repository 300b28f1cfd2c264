"""An orchestrator that would answer anybody on a network does not start unless told to."""

from __future__ import annotations

import json

import pytest

from orchestrator.frontdoor.authentication import TokensFile, anyone
from orchestrator.main import _door
from orchestrator.settings import OrchestratorSettings
from services.contract.errors import StartError


def test_loopback_needs_no_tokens():
    assert _door(OrchestratorSettings(host="127.0.0.1")).identify is anyone


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org"])
def test_beyond_loopback_clients_are_asked_who_they_are_or_the_flag_is_given(host, tmp_path):
    with pytest.raises(StartError, match="tokens_file: without it anybody who reaches"):
        _door(OrchestratorSettings(host=host))
    assert _door(OrchestratorSettings(host=host, insecure=True)).identify is anyone
    ca = tmp_path / "ca.pem"
    assert _door(OrchestratorSettings(host=host, tls_ca=ca)).identify is anyone
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"tenants": {}}))
    door = _door(OrchestratorSettings(host=host, tokens_file=tokens))
    assert isinstance(door.identify, TokensFile)


def test_a_server_certificate_alone_says_nothing_of_clients(tmp_path):
    settings = OrchestratorSettings(host="0.0.0.0", tls_cert=tmp_path / "c", tls_key=tmp_path / "k")
    with pytest.raises(StartError, match="tokens_file"):
        _door(settings)
