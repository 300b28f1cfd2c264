"""GGUF files in parts: read as one, or a start ends with the name of the part that is wrong."""

from __future__ import annotations

import shutil

import pytest
import torch

from services.contract.errors import StartError
from services.engine.checkpoint.bundle import bundle_of, source_folder
from services.engine.checkpoint.files import locate, weights_digest
from services.engine.checkpoint.gguf_model import read_embeddings
from services.engine.native.loading import load_model
from services.engine.spec import ModelSpec
from tests.gguf_files import gguf_file

pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model in one file, and in parts of nine tensors."""
    folder = tmp_path_factory.mktemp("gguf")
    return gguf_file(folder / "whole.gguf"), gguf_file(folder / "m.gguf", in_a_part=9)


@pytest.fixture
def parts(made, tmp_path):
    first = made[1]
    files = sorted(first.parent.glob("m-*.gguf"))
    assert [file.name for file in files] == [f"m-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    return [shutil.copy(file, tmp_path / file.name) for file in files]


@pytest.fixture
def refused(tmp_path):
    def refusal(file):
        """What each reader ends with, which is one line and the same for all."""
        spec = ModelSpec(str(file), cache_dir=tmp_path / "cache")
        readers = (load_model, lambda _: weights_digest(spec.model, spec.cache_dir))
        said = []
        for read in (*readers, lambda _: source_folder(spec.model, "float32", spec.cache_dir)):
            with pytest.raises(StartError) as refusal:
                read(spec)
            said.append(str(refusal.value))
        assert "\n" not in "".join(said)
        assert not list(tmp_path.glob("cache/models/*"))
        return said[0]

    return refusal


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("named", [0, 1, 2])
def test_a_model_in_parts_is_the_model_whichever_part_is_named(made, parts, tmp_path, apart, named):
    spec = ModelSpec(str(parts[named]), cache_dir=tmp_path / "cache")
    loaded, whole = load_model(spec, apart=apart), load_model(ModelSpec(str(made[0])), apart=apart)
    ids = torch.tensor([[5, 6, 7]])
    if not apart:
        assert torch.equal(loaded.model(ids).logits, whole.model(ids).logits)
    assert loaded.bundle == whole.bundle == bundle_of(spec.model)
    assert locate(spec.model) == parts[0]


def test_a_model_in_parts_is_converted_whole(made, parts, tmp_path):
    from safetensors.torch import load_file

    folder, stock = (
        load_file(source_folder(str(file), "float32", tmp_path / "cache") / "model.safetensors")
        for file in (parts[0], made[0])
    )
    assert folder.keys() == stock.keys()
    assert all(torch.equal(tensor, stock[name]) for name, tensor in folder.items())
    assert torch.equal(
        read_embeddings(parts[0], torch.float32), read_embeddings(made[0], torch.float32)
    )


def test_each_part_counts_for_what_the_weights_are(parts, tmp_path):
    before = weights_digest(str(parts[0]), tmp_path)
    data = bytearray(parts[2].read_bytes())
    data[-1] ^= 1
    parts[2].write_bytes(data)
    assert weights_digest(str(parts[0]), tmp_path) != before
    assert weights_digest(str(parts[1]), tmp_path) == weights_digest(str(parts[0]), tmp_path)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_part_that_is_missing_is_named(parts, refused, lost):
    parts[lost].unlink()
    there = parts[0 if lost else 1]
    assert f"part {lost + 1} of 3, {parts[lost].name}, is missing" in refused(there)


def test_parts_whose_names_do_not_say_so_are_not_taken_for_a_whole_model(parts, tmp_path):
    file = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(StartError, match="in 3 parts, and its name does not say where"):
        load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache"))


def test_a_whole_model_may_be_named_as_a_part(made, tmp_path):
    file = shutil.copy(made[0], tmp_path / "m-00001-of-00002.gguf")
    assert load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache")).model


def test_a_part_that_is_another_one_is_named(parts, tmp_path):
    shutil.copy(parts[1], parts[2])
    with pytest.raises(StartError, match=r"m-00003-of-00003\.gguf is not part 3 of 3"):
        load_model(ModelSpec(str(parts[0]), cache_dir=tmp_path / "cache"))


def test_a_part_of_another_model_is_found_out(parts, tmp_path):
    other = gguf_file(tmp_path / "o.gguf", in_a_part=8)
    shutil.copy(other.with_name("o-00003-of-00003.gguf"), parts[2])
    with pytest.raises(StartError, match="two tensors of one name"):
        load_model(ModelSpec(str(parts[0]), cache_dir=tmp_path / "cache"))


@pytest.mark.parametrize("cut", [10, 200, -100])
def test_a_part_that_is_cut_off_is_refused(parts, tmp_path, cut):
    parts[1].write_bytes(parts[1].read_bytes()[:cut])
    with pytest.raises(StartError, match="cut short"):
        load_model(ModelSpec(str(parts[0]), cache_dir=tmp_path / "cache"))
