"""Which processes the peers of a bench need, and what each is told to load."""

from __future__ import annotations

import pytest

from bench import options as bench_options
from bench.options import BenchOptions
from bench.peers import served
from bench.peers.options import PEERS, PeerOptions
from bench.prompts import BenchPrompt
from services.common.errors import StartError
from tests.models import tiny_model_folder

PROMPTS = [BenchPrompt(1, "qa", "?", tuple(range(60))), BenchPrompt(2, "qa", "?", (1,))]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    for module in (bench_options, served):
        monkeypatch.setattr(module, "available_cores", lambda: (4, 5))


def children(**changed: object) -> list[served.Child]:
    given = {"target": "smollm2-135m-instruct", "draft": "d", "max_tokens": 10, **changed}
    return list(served.children(BenchOptions(**given), PROMPTS))


def test_the_ways_of_transformers_share_a_process_and_its_cores():
    peers = PeerOptions(("lookup", "transformers", "assisted"), ("verifier", "all"))
    own, every = children(peers=peers, draft_dtype="bfloat16")
    assert own.ways == every.ways == ("transformers", "assisted", "lookup")
    assert (own.spec.settings["cpus"], every.spec.settings["cpus"]) == ([4], [4, 5])
    assert (own.spec.settings["threads"], every.spec.settings["threads"]) == (1, 2)
    assert (own.spec.settings["draft"], own.spec.settings["draft_dtype"]) == ("d", "bfloat16")
    assert (own.spec.name, every.spec.name) == ("transformers", "transformers, all cores")


def test_a_draft_is_loaded_only_to_assist():
    [only] = children(peers=PeerOptions(("lookup",)))
    assert only.spec.settings["draft"] is None


def test_where_the_verifier_has_all_cores_nothing_runs_twice():
    assert len(children(peers=PeerOptions(("lookup",), ("verifier", "all")), draft=None)) == 1


def test_vllm_gets_a_folder_and_both_of_its_ways_a_process_each(tmp_path):
    folder = tiny_model_folder(tmp_path, "llama")
    peers = PeerOptions(("vllm", "vllm-ngram"), vllm_python="/env/python")
    plain, ngram = children(target=str(folder), peers=peers, concurrency=(1, 16))
    assert plain.spec.settings["model"] == str(folder)
    assert [one.spec.settings["ngram"] for one in (plain, ngram)] == [False, True]
    assert (plain.spec.settings["concurrency"], plain.spec.settings["max_context"]) == (16, 128)
    assert plain.spec.argv[0] == "/env/python"


def test_llama_cpp_runs_gguf_files_alone(tmp_path):
    peers = PeerOptions(("llama.cpp",), llama_server="llama-server")
    (tmp_path / "m.gguf").touch()
    [child] = children(target=str(tmp_path / "m.gguf"), peers=peers)
    assert child.spec.settings["model"] == str(tmp_path / "m.gguf")
    assert not child.exact
    with pytest.raises(StartError, match=r"--peers: llama.cpp runs .gguf files, and .* is none"):
        children(target=str(tmp_path), peers=peers)


def test_equal_texts_are_looked_for_only_greedily_and_in_float32():
    peers = PeerOptions(("transformers",))
    found = [
        children(peers=peers, dtype=dtype, temperature=temperature)[0].exact
        for dtype, temperature in (("float32", 0.0), ("float32", 1.0), ("bfloat16", 0.0))
    ]
    assert found == [True, False, False]


@pytest.mark.demo_model
def test_every_known_peer_has_a_process():
    peers = PeerOptions(PEERS, vllm_python="python", llama_server="llama-server")
    ways = {way for child in children(peers=peers) for way in child.ways}
    assert ways == set(PEERS)
