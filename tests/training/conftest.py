"""One tiny target, and one finished head of it."""

from __future__ import annotations

import pytest

from services.training.head.train import train_head
from tests.models import tiny_model_folder
from tests.training.kit import Quiet, engine_of, small


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    return tiny_model_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def engine(target):
    return engine_of(target)


@pytest.fixture(scope="session")
def finished(target, tmp_path_factory):
    """Options of a run that was never stopped; its folders are there."""
    options = small(target, tmp_path_factory.mktemp("finished") / "out")
    assert train_head(options, Quiet()) == options.out
    return options
