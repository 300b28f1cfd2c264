"""What blocks change of margins, of a tiny model."""

import pytest
import torch

from bench.near_ties import BLOCKS, compared, measure, parser, show
from tests.models import tiny_model_folder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tiny_model_folder(tmp_path_factory.mktemp("m"), max_position_embeddings=8192)
    asked = ["--model", str(folder), "--dtype", "float32", "--prompts", "2", "--tokens", "6"]
    return measure(parser().parse_args(asked))


def test_each_size_of_block_has_a_line_and_float32_hardly_differs(report):
    assert [row["block"] for row in report["blocks"]] == [*map(str, BLOCKS), "all"]
    assert {row["rows"] for row in report["blocks"]} == {12, 12 * len(BLOCKS)}
    assert all(row["half"] <= row["99 in 100"] <= row["all"] < 1e-3 for row in report["blocks"])
    assert "99 in 100" in show(report)


def test_a_margin_is_of_the_same_two_tokens_and_may_turn():
    alone = torch.tensor([[3.0, 2.0, 0.0], [5.0, 1.0, 4.75]])
    block = torch.tensor([[3.0, 2.5, 0.0], [5.0, 1.0, 5.25]])
    found = compared(alone, block)
    assert found.margins.tolist() == [1.0, 0.25]
    assert found.changes.tolist() == [0.5, 0.5]
    assert found.turned.tolist() == [False, True]
