"""Files cut short or changed: a start with one either works or ends with one clear line.

No pickle is ever read, whatever a folder holds.
"""

import io
import json
import pickle
import shutil
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch

from orchestrator.settings import OrchestratorSettings
from orchestrator.text import Tokenizer
from services.cluster.flags import Flags, flags_of
from services.contract.errors import StartError
from services.contract.types import TokenizerBundle
from services.drafter.settings import DrafterSettings
from services.engine.checkpoint.bundle import make_bundle
from services.engine.lookahead_file import Lookahead, read_lookahead, save_lookahead
from services.engine.native.loading import load_model
from services.engine.skip_mask import SkipMask
from services.engine.skip_mask_file import MaskFile, read_mask, write_mask
from services.engine.spec import ModelSpec
from services.engine.synthetic.spec import read_spec
from services.verifier.settings import VerifierSettings
from tests.fuzz.messages import mutated
from tests.models import tiny_model, tiny_model_folder, tiny_tokenizer

DEEP = b"[" * 100_000


def refusal_of(start) -> str | None:
    """The one line that a start ended with; None where it went well."""
    try:
        start()
    except StartError as error:
        line = str(error)
    else:
        return None
    assert "\n" not in line
    assert 0 < len(line) < 1000
    return line


def damaged(data: bytes, random: Random) -> bytes:
    """The content of a file after an accident."""
    match random.randrange(5):
        case 0:
            return data[: random.randrange(len(data))]
        case 1:
            return b""
        case 2:
            return random.choice((DEEP, b"\x80\x04K\x01.", b"null", b"{}", b"\xff" * 100))
        case _:
            return mutated(data, random)


@pytest.fixture(autouse=True)
def no_pickle(monkeypatch):
    """Reading one is a failure, not an error that a start may report."""

    def refuse(*_args, **_kwargs):
        pytest.fail("a pickle was read")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)


# --- A model's folder --------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny_model_folder(tmp_path_factory.mktemp("models"), "llama")


FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.mark.parametrize("name", ["model.safetensors", *FILES])
def test_a_model_with_a_damaged_file_loads_or_ends_in_one_line(saved, tmp_path, name):
    random, refused = Random(name), 0
    content = (saved / name).read_bytes()
    for attempt in range(6):
        folder = shutil.copytree(saved, tmp_path / f"{attempt}")
        (folder / name).write_bytes(damaged(content, random))
        spec = ModelSpec(str(folder), cache_dir=tmp_path / "cache")
        refused += refusal_of(partial(load_model, spec)) is not None
    assert refused or name == "generation_config.json"


def test_a_pickle_beside_or_in_place_of_weights_is_not_read(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")
    load_model(ModelSpec(str(folder), cache_dir=tmp_path / "cache"))
    (folder / "model.safetensors").write_bytes(b"\x80\x04K\x01.")
    assert refusal_of(lambda: load_model(ModelSpec(str(folder), cache_dir=tmp_path / "cache")))


GGUF_HEAD = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
GGUFS = (
    b"",
    b"GGUF",
    GGUF_HEAD,
    b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63),
    GGUF_HEAD + struct.pack("<Q", 2**62) + b"x" * 50,
    GGUF_HEAD + struct.pack("<Q", 4) + b"name" + struct.pack("<IQ", 8, 2**60),
    b"\x80\x04K\x01.",
)


@pytest.mark.parametrize("data", GGUFS, ids=range(len(GGUFS)))
def test_a_damaged_gguf_file_ends_in_one_line(tmp_path, data):
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    assert refusal_of(lambda: load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")))


# --- The files of methods ----------------------------------------------------------


def read_all(path: Path, content: bytes, read, seed: int, attempts: int) -> int:
    """Read damaged copies of a file; how many were refused."""
    random, refused = Random(seed), 0
    for data in (DEEP, *(damaged(content, random) for _ in range(attempts))):
        path.write_bytes(data)
        refused += refusal_of(partial(read, path)) is not None
    return refused


def test_a_damaged_skip_mask_is_read_or_ends_in_one_line(tmp_path):
    path = tmp_path / "mask.json"
    write_mask(path, MaskFile(SkipMask.of(4, [1], [2]), "m", "d" * 64, {"speedup": 1.2}))
    assert read_all(path, path.read_bytes(), read_mask, 1, 300) > 200


def test_damaged_look_ahead_embeddings_are_read_or_end_in_one_line(tmp_path):
    path = tmp_path / "ahead.safetensors"
    save_lookahead(path, Lookahead(torch.randn(2, 8), "base", "digest", {"acceptance": [0.5]}))
    assert read_all(path, path.read_bytes(), read_lookahead, 2, 300) > 150


def test_a_damaged_synthetic_setting_is_read_or_ends_in_one_line(tmp_path):
    path = tmp_path / "spec.json"
    content = json.dumps({"name": "x", "vocab_size": 100}).encode()
    assert read_all(path, content, read_spec, 3, 300) > 100


# --- A tokenizer, from a file or over a link ----------------------------------------


def test_a_damaged_tokenizer_is_used_or_ends_in_one_line():
    bundle = make_bundle(tiny_tokenizer(), tiny_model("llama"))
    random = Random(5)
    for _ in range(60):
        text = damaged(bundle.tokenizer_json.encode(), random).decode(errors="replace")
        with suppress(StartError):
            tokenizer = Tokenizer(TokenizerBundle("f", text, bundle.chat_template))
            tokenizer.decode(tokenizer.encode("héllo <|im_end|>"))


# --- Settings -----------------------------------------------------------------------

JUNK = ("", " ", "-1", "1e999", "nan", "[", "{}", "null", "\x7f", "ü", "a" * 500, "1,2,x", "[[1]]")
KINDS = (OrchestratorSettings, VerifierSettings, DrafterSettings)


@pytest.mark.parametrize("kind", KINDS)
def test_junk_in_the_environment_is_a_setting_or_ends_in_one_line(kind, monkeypatch):
    flags = Flags("paceline trial", "", kind)
    refused = 0
    for flag in flags_of(kind):
        for value in JUNK:
            with monkeypatch.context() as changed:
                changed.setenv("PACELINE_WORKER_ID", "w1")
                changed.setenv("PACELINE_TARGET", "t")
                changed.setenv(flag.variable, value)
                refused += refusal_of(lambda: flags.read(kind)) is not None
    assert refused > 10


def test_the_refusal_of_a_pickle_works():
    with pytest.raises(pytest.fail.Exception):
        torch.load(io.BytesIO(b""))
