"""Why a model cannot be run by vLLM, each in one sentence; vLLM itself is not needed for that."""

from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import pytest

from services.contract.errors import StartError
from services.drafter.settings import DrafterSettings
from services.engine import start
from services.engine.spec import ModelSpec
from services.engine.vllm import loading
from services.engine.vllm.extension import Loaded
from services.verifier.settings import VerifierSettings

FULL = "FullAttentionSpec"


@pytest.fixture
def versions(monkeypatch):
    """What is installed, by name."""
    there: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(loading.metadata, "version", version)
    return there


def test_without_vllm_the_way_to_it_is_said(versions):
    with pytest.raises(StartError, match=r"not installed here \(make setup-vllm"):
        start.load(ModelSpec("m", engine="vllm"))


@pytest.mark.parametrize("name", loading.DISTRIBUTIONS)
def test_a_release_that_was_not_tried_is_refused(versions, name):
    versions[name] = "0.31.2"
    with pytest.raises(StartError, match=rf"{name} 0\.31\.2 is installed, and 0\.32\.x is needed"):
        loading.installed()
    versions[name] = "0.32.1"
    assert loading.installed() == "0.32.1"


@pytest.mark.parametrize(
    ("seen", "device", "left"),
    [("", "cuda:1", "1"), ("4,6", "cuda:1", "6"), ("GPU-a,GPU-b", "cuda:0", "GPU-a")],
)
def test_vllm_sees_the_one_device_that_it_is_to_take(monkeypatch, seen, device, left):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    for name in loading._ENVIRONMENT:
        monkeypatch.setenv(name, "as it is")
    loading.prepare(device)
    assert loading.os.environ["CUDA_VISIBLE_DEVICES"] == left


def test_a_device_that_is_not_visible_is_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(StartError, match="cuda:1 is not among CUDA_VISIBLE_DEVICES=3"):
        loading.prepare("cuda:1")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"groups": 2, "kinds": (FULL, "MambaSpec")}, f"in {FULL}, MambaSpec, which cannot be"),
        ({"kinds": ("MambaSpec",)}, "in MambaSpec, which cannot be rolled back"),
        ({"kernel_block_size": 16}, "divides blocks of 32 tokens into 16"),
    ],
)
def test_memory_that_cannot_be_rolled_back_or_addressed_is_refused(more, said):
    loaded = Loaded(64, 32, 32, 1, (FULL,), 10, 64, "cpu")
    loading._require_blocks(loaded, "m")
    with pytest.raises(StartError, match=said):
        loading._require_blocks(replace(loaded, **more), "m")


def test_heads_that_cannot_be_divided_are_named():
    with pytest.raises(StartError, match="3 does not divide 4, the attention heads of m"):
        loading._split(ModelSpec("m", tensor_parallel=3), SimpleNamespace(num_attention_heads=4))


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (VerifierSettings, {"synthetic": "f.json"}, "engine vllm is given"),
        (DrafterSettings, {"draft": "m", "dtype": "int8"}, "does not go with dtype int8"),
        (DrafterSettings, {"synthetic": "f.json"}, "does not go with synthetic"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(kind, given, said):
    with pytest.raises(ValueError, match=said):
        kind(engine="vllm", **given)


def test_graphs_that_were_not_captured_are_not_pretended():
    spec = ModelSpec("m", device="cuda", execution="full")
    loading._require_graphs(spec, "FULL_AND_PIECEWISE")
    loading._require_graphs(replace(spec, execution="compiled"), "NONE")
    with pytest.raises(
        StartError, match="full is asked for, and vLLM captures no CUDA graphs of m"
    ):
        loading._require_graphs(spec, "NONE")


def test_on_a_cpu_graphs_are_refused_before_anything_is_loaded(versions):
    versions["vllm"] = "0.32.0"
    with pytest.raises(StartError, match="no CUDA graphs of m on cpu; give eager or compiled"):
        start.load(ModelSpec("m", engine="vllm", execution="piecewise"))


@pytest.mark.parametrize("kind", [VerifierSettings, DrafterSettings])
def test_other_engines_run_models_as_they_are(kind):
    with pytest.raises(ValueError, match="execution: only --engine vllm has others than eager"):
        kind(execution="compiled", **({"target": "m"} if kind is VerifierSettings else {}))


def test_a_model_is_split_by_vllm_alone():
    with pytest.raises(ValueError, match="only --engine vllm splits a model"):
        VerifierSettings(target="m", tensor_parallel=2)
    assert VerifierSettings(target="m", tensor_parallel=2, engine="vllm").tensor_parallel == 2
