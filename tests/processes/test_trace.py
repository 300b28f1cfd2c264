"""One request's trace, joined over all processes by a real OTLP receiver."""

from __future__ import annotations

import pytest

from services.common.telemetry import names
from tests.otlp_receiver import OtlpReceiver
from tests.processes.conftest import start_up

pytestmark = pytest.mark.processes


def test_a_request_is_one_trace_through_orchestrator_drafter_and_verifier(
    models, tmp_path, monkeypatch
):
    with OtlpReceiver() as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        up = start_up(
            tmp_path,
            "--target",
            str(models / "llama-0"),
            "--draft",
            str(models / "llama-3"),
        )
        events = up.generate("--max-tokens", "30", "--temperature", "0")
        assert up.stop() == 0

    [generate] = receiver.named(names.GENERATE.name)
    trace = [span for span in receiver.spans if span.trace_id == generate.trace_id]
    services = {span.resource[names.SERVICE_NAME] for span in trace}
    assert services == {"paceline-orchestrator", "paceline-drafter", "paceline-verifier"}

    rounds = [span for span in receiver.children(generate) if span.name == names.SPEC_ROUND.name]
    emitted = sum(span.attributes[names.EMITTED_TOKENS] for span in rounds)
    assert emitted == sum(len(e["token_ids"]) for e in events if e["event"] == "chunk")
    drafted = sum(
        span.attributes[names.DRAFT_TOKENS] - span.attributes.get(names.DISCARDED_TOKENS, 0)
        for span in rounds
    )
    assert drafted == events[-1]["speculation"]["num_draft_tokens"]

    places = {span.place for span in rounds}
    verifies = {s.place: s for s in trace if s.name == names.SPEC_VERIFY.name}
    assert {(s.trace_id, s.parent_id) for s in verifies.values()} <= places
    at_work = [s for s in receiver.named(names.VERIFY.name) if s.trace_id == generate.trace_id]
    assert at_work
    assert {(s.trace_id, s.parent_id) for s in at_work} <= set(verifies)
    text = "".join(event["text"] for event in events if event["event"] == "chunk")
    assert not [span for span in trace if text in str(span.attributes)]
