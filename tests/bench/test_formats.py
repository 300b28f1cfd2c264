"""How far number formats are from float32, of a tiny model."""

import pytest

from bench.formats import measure, parser, show
from services.engine import number_formats
from tests.models import tiny_model_folder


@pytest.mark.skipif(
    not (number_formats.cpu().half and number_formats.cpu().int8), reason="this CPU has no FBGEMM"
)
def test_each_format_has_a_line_and_float16_is_nearer_to_float32_than_int8(tmp_path):
    folder = tiny_model_folder(tmp_path, max_position_embeddings=8192)
    asked = ["--model", str(folder), "--tokens", "600", "--formats", "float16,int8", "--rows", "1"]
    report = measure(parser().parse_args(asked))
    exact, half, rounded = report["formats"]
    assert (exact["format"], exact["same best"], exact["KL"]) == ("float32", 1.0, 0.0)
    assert 0 < half["KL"] < rounded["KL"] < 0.05
    assert rounded["weights, MB"] * 2 <= half["weights, MB"]
    shown = show(report)
    assert "largest KL" in shown
    assert "500 tokens" in shown
