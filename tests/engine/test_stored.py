"""Weights that stay in their file until they are packed: GGUF files and folders."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from services.contract.errors import StartError
from services.engine import number_formats
from services.engine.checkpoint import gguf_model
from services.engine.checkpoint.gguf_file import GgufFile
from services.engine.checkpoint.stored import embeddings_of, stored_of, weight_of
from services.engine.native import NativeEngine, packing
from services.engine.native.loading import load_model
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.engine.conftest import CLOSE
from tests.gguf_files import Shape, gguf_file
from tests.models import SUPPORTED, tiny_model_folder

TEXT = [5, 300, 7, 200, 31]
ARCHITECTURES = ("llama", "gemma3")
gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return {arch: gguf_file(folder / f"{arch}.gguf", arch) for arch in ARCHITECTURES}


@pytest.fixture(autouse=True)
def packed(monkeypatch):
    """As large models are."""
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)


def stock(file: Path):
    """What transformers makes of a file by itself."""
    from transformers import AutoModelForCausalLM, GgufConfig

    return AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        trust_remote_code=False,
    ).eval()


def logits_of(engine: NativeEngine):
    [rows] = engine.forward([Segment(engine.new_cache(len(TEXT)), TEXT)])
    return rows


@torch.inference_mode()
def said(model):
    return model(torch.tensor([TEXT])).logits[0]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_gguf_file_is_read_as_the_gguf_package_reads_it(files, arch):
    from transformers.modeling_gguf_pytorch_utils import read_field

    ours, theirs = GgufFile(files[arch]), gguf.GGUFReader(files[arch])
    names = [name for name in theirs.fields if not name.startswith("GGUF.")]
    assert list(ours.fields) == names
    assert all(read_field(ours, name) == read_field(theirs, name) for name in names)
    for one, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (one.name, one.tensor_type) == (other.name, other.tensor_type)
        assert np.array_equal(one.data, other.data)
        assert np.array_equal(one.mapped(), other.data)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"])
def test_an_engine_on_a_gguf_file_says_what_transformers_says(tmp_path, arch, kind):
    file = gguf_file(tmp_path / "m.gguf", arch, kind=kind)
    engine = NativeEngine.load(ModelSpec(str(file), cache_dir=tmp_path / "cache"))
    torch.testing.assert_close(logits_of(engine), said(stock(file)), **CLOSE)
    assert not (tmp_path / "cache" / "models").exists()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_gguf_file_has_the_settings_and_tokens_that_transformers_finds(files, arch):
    from transformers import AutoTokenizer

    file = files[arch]
    theirs = {**stock(file).config.to_dict(), "dtype": None}
    assert gguf_model.read_config(file).to_dict() == theirs
    tokenizer = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, trust_remote_code=False
    )
    ours = gguf_model.read_tokenizer(file)
    assert ours.bos_token_id == tokenizer.bos_token_id
    text = "Hello drafter, 12 héllo 中<eos>"
    ids = tokenizer(text)["input_ids"]
    assert ours(text)["input_ids"] == ids
    assert ours.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_last_layer_that_is_the_embeddings_is_in_memory_once(files, dtype):
    engine = NativeEngine.load(ModelSpec(str(files["gemma3"]), dtype))
    embeddings = engine.model.get_input_embeddings()
    assert embeddings.weight.device.type == "meta"
    assert sum(one.numel() for one in engine.model.parameters()) < 5000
    whole = stock(files["gemma3"]).get_input_embeddings()
    ids = torch.tensor([TEXT])
    read = load_model(ModelSpec(str(files["gemma3"]), dtype)).model.get_input_embeddings()
    assert torch.equal(embeddings_of(engine.model), read.weight)
    torch.testing.assert_close(
        embeddings(ids).float(), whole(ids), rtol=2e-2 if dtype != "float32" else 0, atol=0
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_a_large_layer_that_is_packed_in_parts_multiplies_as_a_whole_one(files, dtype, monkeypatch):
    spec = ModelSpec(str(files["gemma3"]), dtype)
    whole = logits_of(NativeEngine.load(spec))
    monkeypatch.setattr(packing, "MOST_NUMBERS", 10_000)
    monkeypatch.setattr(packing, "MOST_WIDENED", 10_000)
    engine = NativeEngine.load(spec)
    assert isinstance(engine.model.lm_head, packing.SplitLinear)
    torch.testing.assert_close(logits_of(engine), whole, atol=2e-1, rtol=2e-2)
    assert engine.model.lm_head.whole().shape == (384, 64)


@pytest.mark.parametrize("arch", SUPPORTED)
def test_a_folder_whose_weights_stay_there_gives_the_model_that_was_saved(tmp_path, arch):
    folder = tiny_model_folder(tmp_path, arch)
    whole = load_model(ModelSpec(str(folder))).model.eval()
    engine = NativeEngine.load(ModelSpec(str(folder)))
    torch.testing.assert_close(logits_of(engine), said(whole), **CLOSE)


@pytest.mark.parametrize("form", ["file", "folder"])
def test_matrices_stay_where_they_are_until_somebody_wants_them(files, tmp_path, form):
    source = files["llama"] if form == "file" else tiny_model_folder(tmp_path, "llama")
    apart, whole = (
        load_model(ModelSpec(str(source)), apart=apart).model for apart in (True, False)
    )
    pairs = list(zip(apart.named_modules(), whole.modules(), strict=True))
    matrices = [(one, other) for (_, one), other in pairs if isinstance(one, nn.Linear)]
    assert matrices
    for one, other in matrices:
        stored = stored_of(one)
        assert stored.shape == other.weight.shape
        assert torch.equal(weight_of(one), other.weight)
        ids = torch.tensor([3, 1, 3])
        assert torch.equal(stored.rows(ids, torch.float32), other.weight[ids])


def test_a_file_that_is_cut_short_is_one_line(files, tmp_path):
    content = files["llama"].read_bytes()
    file = tmp_path / "short.gguf"
    for size in (len(content) - 1, len(content) // 2, 500, 30, 7):
        file.write_bytes(content[:size])
        with pytest.raises(StartError, match=r"short\.gguf") as refusal:
            load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache"), apart=True)
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 500


def test_a_head_and_a_text_drafter_read_a_file_without_a_copy_on_disk(files, tmp_path, monkeypatch):
    from services.engine.checkpoint.bundle import bundle_of

    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
    file = shutil.copy(files["llama"], tmp_path / "m.gguf")
    loaded = load_model(ModelSpec(str(file)))
    assert bundle_of(str(file)).tokenizer_json == loaded.bundle.tokenizer_json
    assert not (tmp_path / "cache" / "models").exists()


PROGRAM = """
import re, sys
from pathlib import Path
import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.runtime.memory import returning_memory

torch.set_num_threads(2)
before = psutil.Process().memory_info().rss
with returning_memory():
    spec = ModelSpec(sys.argv[1], sys.argv[2], kv_capacity_tokens=1000, batch_invariant=False)
    engine = NativeEngine.load(spec)
kept = psutil.Process().memory_info().rss - before
# What `getrusage` tells is not less than what the parent had.
peak = int(re.search("VmHWM:.*?([0-9]+)", Path("/proc/self/status").read_text())[1]) * 1024 - before
print(kept, peak)
"""
OTHERS = 150 << 20
"""Modules that are imported on the way."""
LARGE = Shape(width=1024, middle=4096, layers=3, vocabulary=1 << 16)
WEIGHTS = LARGE.width * (LARGE.vocabulary + LARGE.layers * 3 * LARGE.middle)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_start_takes_little_more_memory_than_the_weights_as_they_are_served(
    tmp_path, dtype, size
):
    if dtype == "bfloat16" and not number_formats.cpu().bfloat16:
        pytest.skip("weights are fp16 here, which FBGEMM rounds up to its tiles")
    file = gguf_file(tmp_path / "m.gguf", "gemma3", LARGE)
    command = [sys.executable, "-c", PROGRAM, str(file), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, peak = map(int, done.stdout.split())
    served = size * WEIGHTS
    if dtype == "bfloat16" and number_formats.cpu().coded:
        # The last layer's codes: twice 4 bits, and what they mean.
        served += LARGE.width * LARGE.vocabulary * 5 // 4
    assert kept < 1.5 * served + OTHERS
    assert peak < 1.3 * (kept + OTHERS)
