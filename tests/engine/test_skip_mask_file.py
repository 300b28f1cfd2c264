"""The file of a skip mask: written, read, and refused where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.contract.errors import StartError
from services.engine.checkpoint.files import weights_digest
from services.engine.skip_mask import SkipMask
from services.engine.skip_mask_file import MaskFile, mask_for, read_mask, write_mask
from tests.models import tiny_model_folder

MASK = SkipMask.of(4, attention=[2, 1], mlp=[3])
CONTENT = MaskFile(MASK, "a-model", "d" * 64, {"speedup": 1.25})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sub" / "mask.json"
    write_mask(path, CONTENT)
    return path


def change(path: Path, **values: Any) -> None:
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, **values}))


def test_a_mask_is_read_as_it_was_written(path: Path) -> None:
    assert read_mask(path) == CONTENT
    assert json.loads(path.read_text())["skip"] == {"attention": [1, 2], "mlp": [3]}
    assert [file.name for file in path.parent.iterdir()] == ["mask.json"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"format": "other"}, "format 'other' is not 'paceline-skip-mask'"),
        ({"version": 2}, "version 2; this Paceline reads 1"),
        ({"layers": 3}, r"layer 3 is skipped, there are 0\.\.2"),
        ({"layers": "4"}, "layers '4' is no number of layers"),
        ({"skip": {"attention": [1]}}, "mlp is missing"),
        ({"skip": {"attention": ["1"], "mlp": []}}, "skip does not list layers"),
        ({"skip": {"attention": 1, "mlp": []}}, "skip does not list layers"),
        ({"skip": [1]}, "not a skip mask's"),
        ({"model": {"name": "m", "weights": ""}}, "model lacks"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_reason(path, values, told) -> None:
    change(path, **values)
    with pytest.raises(StartError, match=f"skip mask .*mask.json: {told}"):
        read_mask(path)


def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"nothing\.json: No such file"):
        read_mask(tmp_path / "nothing.json")
    (tmp_path / "broken.json").write_text('{"format": ')
    with pytest.raises(StartError, match=r"broken.json: Expecting") as caught:
        read_mask(tmp_path / "broken.json")
    assert "\n" not in str(caught.value)


def test_a_mask_fits_the_weights_that_it_was_made_for_and_no_others(tmp_path: Path) -> None:
    folders = [tiny_model_folder(tmp_path, seed=seed) for seed in (0, 1)]
    path, cache = tmp_path / "mask.json", tmp_path / "cache"
    digest = weights_digest(str(folders[0]), cache)
    write_mask(path, MaskFile(MASK, "tiny", digest))
    assert mask_for(path, str(folders[0]), cache) == MASK
    with pytest.raises(
        StartError, match=rf"is for tiny \(weights {digest[:12]}\), but .* has other"
    ):
        mask_for(path, str(folders[1]), cache)
