"""One tiny target, and one finished distillation of it."""

from __future__ import annotations

import pytest

from services.training.distill.run import distill
from tests.distill.kit import Quiet, engine_of, small
from tests.models import tiny_model_folder


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return tiny_model_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def engine(target):
    return engine_of(target)


@pytest.fixture(scope="session")
def finished(target, tmp_path_factory):
    """Options of a run that was never stopped; its folders are there."""
    options = small(target, tmp_path_factory.mktemp("finished") / "out", command="paceline distill")
    assert distill(options, Quiet()) == options.out
    return options
