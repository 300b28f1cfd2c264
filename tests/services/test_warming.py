"""What a verifier on a device computes before it serves."""

import logging

from services.contract.types import VerifyMode
from services.engine.native import NativeEngine
from services.verifier import main as verifying
from services.verifier.settings import VerifierSettings
from services.verifier.warming import BLOCKS, warm_up
from tests.fake_engine import FakeEngine
from tests.integration.cluster import engine


def rows_of_steps(made: NativeEngine) -> list[list[int]]:
    """The rows of each session in every step from now on."""
    steps, forward = [], made.forward

    def noted(segments):
        steps.append([len(segment.token_ids) for segment in segments])
        return forward(segments)

    made.forward = noted
    return steps


def test_every_mode_decodes_blocks_of_every_size_beside_others_and_alone(caplog):
    made = engine()
    steps = rows_of_steps(made)
    with caplog.at_level(logging.WARNING):
        warm_up(made)
    assert not caplog.records
    for size in BLOCKS:
        assert [1 + size] * len(VerifyMode) in steps
        assert steps.count([1 + size]) == len(VerifyMode)
    assert made.kv_tokens_used == made.kv_tokens_spare == 0


def test_an_engine_of_chains_alone_is_given_chains(caplog):
    made = FakeEngine()
    made.capabilities = frozenset()
    with caplog.at_level(logging.WARNING):
        warm_up(made)
    assert not caplog.records


def test_what_fails_is_a_line_and_no_more(caplog):
    made = engine()

    def fails(segments):
        raise RuntimeError("no kernel for this device")

    made.forward = fails
    with caplog.at_level(logging.WARNING):
        warm_up(made)
    said = [record.getMessage() for record in caplog.records if "warming" in record.name]
    assert len(said) == len(VerifyMode)
    assert made.kv_tokens_used == 0


def test_a_cpu_is_not_warmed_up(monkeypatch):
    warmed = []
    monkeypatch.setattr(verifying.start, "load", lambda spec, others: spec.device)
    monkeypatch.setattr(verifying, "warm_up", warmed.append)
    for device in ("cpu", "cuda:0"):
        verifying.load_engine(VerifierSettings(target="m", device=device))
    assert warmed == ["cuda:0"]
