"""A target of four layers."""

from pathlib import Path

import pytest

from tests.models import tiny_model_folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models"), "llama", num_hidden_layers=4)
