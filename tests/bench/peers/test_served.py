"""Which processes the peers of a bench need, and what each is told to load."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bench import options as bench_options
from bench.options import BenchOptions
from bench.peers import served
from bench.peers.options import PEERS, PeerOptions
from bench.peers.process import PeerSpec
from bench.prompts import BenchPrompt
from services.contract.errors import StartError
from tests.bench.test_figures import trial
from tests.models import tiny_model_folder

PROMPTS = [BenchPrompt(1, "qa", "?", tuple(range(60))), BenchPrompt(2, "qa", "?", (1,))]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    for module in (bench_options, served):
        monkeypatch.setattr(module, "available_cores", lambda: (4, 5))


def options(**changed: object) -> BenchOptions:
    given = {"target": "smollm2-135m-instruct", "draft": "d", "max_tokens": 10, **changed}
    return BenchOptions(**given)


def children(formats: dict[str, str] | None = None, **changed: object) -> list[PeerSpec]:
    """Those of a bench whose peers have these number formats, and float32 else."""
    asked = options(**changed)
    known = dict.fromkeys(served._names(asked), "float32") | (formats or {})
    return list(served.children(asked, PROMPTS, known))


def test_the_ways_of_transformers_share_a_process_and_its_cores():
    peers = PeerOptions(("lookup", "transformers", "assisted"), ("verifier", "all"))
    own, every = children(peers=peers, draft_dtype="bfloat16")
    known = ["transformers", "assisted", "lookup"]
    assert list(own.ways.values()) == list(every.ways.values()) == known
    assert (own.settings["cpus"], every.settings["cpus"]) == ([4], [4, 5])
    assert (own.settings["threads"], every.settings["threads"]) == (1, 2)
    assert (own.settings["draft"], own.settings["draft_dtype"]) == ("d", "bfloat16")
    assert (own.name, every.name) == ("transformers", "transformers, all cores")


def test_transformers_runs_on_the_device_of_the_verifiers():
    peers = PeerOptions(("transformers",))
    devices = {(): "cpu", ("cuda:1", "cuda:2"): "cuda:1"}
    for asked, device in devices.items():
        [only] = children(peers=peers, verifier_device=asked)
        assert only.settings["device"] == device


def test_a_draft_is_loaded_only_to_assist():
    [only] = children(peers=PeerOptions(("lookup",)))
    assert only.settings["draft"] is None


def test_where_the_verifier_has_all_cores_nothing_runs_twice():
    assert len(children(peers=PeerOptions(("lookup",), ("verifier", "all")), draft=None)) == 1


def test_vllm_gets_a_folder_and_both_of_its_ways_a_process_each(tmp_path):
    folder = tiny_model_folder(tmp_path, "llama")
    peers = PeerOptions(("vllm", "vllm-ngram"), vllm_python="/env/python")
    plain, ngram = children(target=str(folder), peers=peers, concurrency=(1, 16))
    assert plain.settings["model"] == str(folder)
    assert [one.settings["ngram"] for one in (plain, ngram)] == [False, True]
    assert (plain.settings["concurrency"], plain.settings["max_context"]) == (16, 128)
    assert plain.argv[0] == "/env/python"


def test_llama_cpp_runs_gguf_files_alone(tmp_path):
    peers = PeerOptions(("llama.cpp", "llama.cpp-ngram"), llama_server="llama-server")
    (tmp_path / "m.gguf").touch()
    plain, ngram = children(target=str(tmp_path / "m.gguf"), peers=peers)
    assert plain.settings["model"] == str(tmp_path / "m.gguf")
    assert [one.settings["ngram"] for one in (plain, ngram)] == [False, True]
    assert not plain.exact
    with pytest.raises(StartError, match=r"--peers: llama.cpp runs .gguf files, and .* is none"):
        children(target=str(tmp_path), peers=peers)


def test_equal_texts_are_looked_for_only_greedily_and_both_in_float32():
    peers = PeerOptions(("transformers",))
    found = [
        children({"transformers": theirs}, peers=peers, dtype=ours, temperature=heat)[0].exact
        for ours, theirs, heat in (
            ("float32", "float32", 0.0),
            ("float32", "float32", 1.0),
            ("bfloat16", "float32", 0.0),
            ("float32", "bfloat16", 0.0),
        )
    ]
    assert found == [True, False, False, False]


def test_ways_of_transformers_in_two_formats_are_two_processes():
    peers = PeerOptions(("transformers", "assisted", "lookup"))
    plain, assisted = children({"assisted": "bfloat16"}, peers=peers)
    assert (list(plain.ways), plain.dtype) == (["transformers", "lookup"], "float32")
    assert (list(assisted.ways), assisted.dtype) == (["assisted"], "bfloat16")
    assert assisted.settings["draft_dtype"] == "bfloat16"


def test_prompts_are_kept_only_where_text_seen_before_is_measured(tmp_path):
    folder = tiny_model_folder(tmp_path, "llama")
    peers = PeerOptions(("vllm",), vllm_python="/env/python")
    found = [
        children(target=str(folder), peers=peers, seen_before=seen)[0].settings
        for seen in (False, True)
    ]
    assert [one["prefix_caching"] for one in found] == [False, True]


# --- the number format of each --------------------------------------------------------

SPEEDS = {
    ("transformers", "float32"): 20.0,
    ("transformers", "bfloat16"): 30.0,
    ("lookup", "float32"): 40.0,
    ("lookup", "bfloat16"): 10.0,
}


class Peer:
    """A child that answers as fast as its format lets it; one without a speed does not start."""

    about = "a peer"

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self.asked: list[tuple[int, ...]] = []

    async def answer(self, way, token_ids, options):
        self.asked.append(token_ids)
        wall = options["max_tokens"] / SPEEDS[way, self._dtype]
        return trial(way, 0, wall, tokens=options["max_tokens"]).results[0]


@pytest.fixture
def started(monkeypatch) -> list[tuple[str, str, Peer]]:
    """Every child that was started, with its ways and format."""
    seen: list[tuple[str, str, Peer]] = []

    @asynccontextmanager
    async def peer_process(spec, folder):
        dtype = spec.settings["dtype"]
        if not any(known == dtype for _, known in SPEEDS):
            raise StartError(f"no {dtype} here")
        seen.append((spec.name, dtype, Peer(dtype)))
        yield seen[-1][2]

    monkeypatch.setattr(served, "peer_process", peer_process)
    return seen


BOTH = PeerOptions(("transformers", "lookup"))


async def formats(tmp_path, peers=BOTH, known=None) -> tuple[dict[str, str], list[str]]:
    said: list[str] = []
    asked = options(peers=peers)
    return await served.fastest_formats(asked, PROMPTS, said.append, tmp_path, known or {}), said


async def test_a_short_trial_gives_each_peer_the_format_it_is_fastest_in(started, tmp_path):
    found, said = await formats(tmp_path)
    assert found == {"transformers": "bfloat16", "lookup": "float32"}
    assert said[0] == (
        "transformers is given bfloat16 (tokens/s of a short answer: float32 20.0, bfloat16 30.0)"
    )
    # Warmed up with the last prompt, then asked the first.
    warm, *asked = started[0][2].asked[:3]
    assert warm == PROMPTS[-1].token_ids
    assert set(asked) == {PROMPTS[0].token_ids}


async def test_a_format_that_was_asked_for_is_not_tried(started, tmp_path):
    found, _ = await formats(tmp_path, replace(BOTH, dtype="bfloat16"))
    assert found == {"transformers": "bfloat16", "lookup": "bfloat16"}
    assert not started


async def test_trials_that_were_taken_before_decide(started, tmp_path):
    found, _ = await formats(tmp_path, known={"transformers": "float32", "lookup": "bfloat16"})
    assert found == {"transformers": "float32", "lookup": "bfloat16"}
    assert not started


async def test_a_format_that_a_peer_does_not_start_in_is_left_out(started, tmp_path, monkeypatch):
    monkeypatch.setattr(served, "FORMATS", ("float16", "float32"))
    found, said = await formats(tmp_path)
    assert found == {"transformers": "float32", "lookup": "float32"}
    assert said[0] == "transformers in float16: no float16 here"


async def test_the_columns_of_peers_say_their_formats_and_keep_their_order(started):
    async with served.served_peers(options(peers=BOTH), PROMPTS, lambda _: None) as made:
        assert [(one.name, one.dtype) for one in made] == [
            ("transformers", "bfloat16"),
            ("lookup", "float32"),
        ]


@pytest.mark.demo_model
def test_every_known_peer_has_a_process():
    peers = PeerOptions(PEERS, vllm_python="python", llama_server="llama-server")
    assert {way for child in children(peers=peers) for way in child.ways.values()} == set(PEERS)
