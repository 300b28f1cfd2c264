"""Which configurations a bench runs, and what it may claim of each."""

from dataclasses import replace

import pytest

from bench import main
from bench import options as module
from bench.configurations import baselines, drafting, plain
from bench.options import PACINGS, BenchOptions
from bench.peers.options import PeerOptions
from bench.peers.served import context
from bench.runner import Schedule
from orchestrator.session.options import POLICIES
from services.contract.errors import StartError
from tests.console.typed import read
from tests.cpus import told

RULES = ("standard", "block", "coupled")
COMPARING = BenchOptions(target="m", temperature=1.0, rejection_sample_methods=RULES)


def names(options: BenchOptions) -> list[str]:
    return [one.name for one in drafting(options, ["a:1"] * len(options.served_pacings))]


def test_without_rules_every_pacing_uses_the_server_s_own():
    options = BenchOptions(target="m")
    addresses = [f"a:{number}" for number in range(len(PACINGS))]
    made = list(drafting(options, addresses))
    assert [(one.name, one.address) for one in made] == list(zip(PACINGS, addresses, strict=True))
    assert all("rejection_sample_method" not in one.options for one in made)
    assert options.served_pacings == PACINGS == POLICIES


def test_rules_are_told_apart_at_the_asynchronous_pacing():
    assert names(COMPARING) == ["adaptive, standard", "adaptive, block", "adaptive, coupled"]


def test_every_rule_stands_beside_the_standard_one_of_its_pacing():
    options = replace(COMPARING, pacings=("fixed", "eager"))
    assert list(baselines(options)) == [
        ("fixed, block", "fixed, standard"),
        ("fixed, coupled", "fixed, standard"),
        ("eager, block", "eager, standard"),
        ("eager, coupled", "eager, standard"),
    ]


def test_plain_decoding_and_synchronous_speculation_are_what_others_are_held_against():
    options = BenchOptions(target="m", pacings=("eager", "fixed"))
    made = drafting(options, ["a:1", "a:2"])
    assert {one.name: one.baseline for one in made} == {"eager": False, "fixed": True}
    assert plain(options, "plain", "a:1", "").baseline
    assert not list(baselines(options))


def test_fixed_has_a_window_of_its_own_and_others_the_server_s():
    options = BenchOptions(target="m", pacings=("eager", "fixed"))

    def windows(options: BenchOptions) -> dict[str, int | None]:
        made = drafting(options, ["a:1", "a:2"])
        return {one.name: one.options.get("num_speculative_tokens") for one in made}

    assert windows(options) == {"eager": None, "fixed": 5}
    assert windows(replace(options, num_speculative_tokens=8)) == {"eager": 8, "fixed": 8}
    assert windows(replace(options, fixed_tokens=(3, 7))) == {
        "eager": None,
        "fixed 3": 3,
        "fixed 7": 7,
    }


def test_every_drafter_has_a_cluster_and_all_verifiers_the_same_cores():
    options = BenchOptions(target="m", draft="d", drafters=("model", "ngram", "ngram+model"))
    clusters = options.clusters
    assert {name: one.method for name, one in clusters.items()} == {
        "model": "model",
        "ngram": "ngram",
        "ngram+model": "ngram,model",
    }
    assert [one.draft for one in clusters.values()] == ["d", None, "d"]
    plans = [one.core_plan([0, 1, 2]) for one in clusters.values()]
    assert {plan.verifiers for plan in plans} == {((0, 1),)}


def test_drafters_with_eagle_have_the_head_and_others_the_draft_model():
    drafters = ("ngram+eagle@verifier", "eagle@pool", "ngram+model")
    options = BenchOptions(target="m", draft="d", head="h", drafters=drafters)
    assert [one.draft for one in options.clusters.values()] == ["h", "h", "d"]
    assert next(one.method for one in options.clusters.values()) == "ngram,eagle"


def test_a_drafter_says_where_it_drafts():
    options = BenchOptions(target="m", drafters=("ngram@verifier", "ngram@pool"))
    beside, apart = options.clusters.values()
    assert (beside.method, beside.beside) == ("ngram", True)
    assert (apart.method, apart.beside) == ("ngram", False)


def test_a_drafter_that_runs_no_model_leaves_all_cores_to_its_verifier_when_it_is_alone():
    [cluster] = BenchOptions(target="m", drafters=("ngram",)).clusters.values()
    assert cluster.core_plan([0, 1]).verifiers == ((0, 1),)


def test_every_cluster_runs_on_the_engine_and_devices_that_are_asked_for(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: (0, 1, 2))
    on_cpu = BenchOptions(target="m", draft="d", drafters=("model", "ngram"), engine="vllm")
    assert {one.engine for one in on_cpu.clusters.values()} == {"vllm"}
    assert on_cpu.plain_all_cores.engine == "vllm"
    devices = {"verifier_device": ("cuda:0",), "drafter_device": ("cuda:1",)}
    on_gpus = replace(on_cpu, **devices)
    found = {(one.verifier_device, one.drafter_device) for one in on_gpus.clusters.values()}
    assert found == {(("cuda:0",), ("cuda:1",))}


def test_plain_decoding_on_all_cores_is_for_models_that_compute_on_cores(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: (0, 1, 2))
    options = BenchOptions(target="m", draft="d")
    assert options.plain_all_cores is not None
    assert replace(options, verifier_device=("cpu",)).plain_all_cores is not None
    assert replace(options, verifier_device=("cuda:0",)).plain_all_cores is None
    assert replace(options, draft=None).plain_all_cores is None
    assert replace(options, rejection_sample_methods=RULES).plain_all_cores is None


def test_lists_of_the_command_line_are_words_joined_by_commas():
    peers = ("--peers", "lookup,vllm", "--peer-cores", "verifier,all", "--vllm-python", "/bin/sh")
    options = read("bench", "--concurrency", "1, 4,16", *peers)
    assert options.concurrency == (1, 4, 16)
    assert options.pacings == ()
    assert options.peers == PeerOptions(("lookup", "vllm"), ("verifier", "all"), "/bin/sh")
    with pytest.raises(StartError, match="--concurrency: '1,many' is not allowed: no list"):
        read("bench", "--concurrency", "1,many")


def test_without_the_standard_rule_the_first_one_is_the_measure():
    options = replace(COMPARING, rejection_sample_methods=("coupled", "block"))
    assert list(baselines(options)) == [("adaptive, block", "adaptive, coupled")]


def test_a_rule_and_its_candidates_are_asked_of_the_server():
    options = replace(COMPARING, num_candidates=3, num_speculative_tokens=8)
    asked = next(iter(drafting(options, ["a:1"]))).options
    assert asked == {
        "rejection_sample_method": "standard",
        "num_candidates": 3,
        "num_speculative_tokens": 8,
    }


@pytest.mark.parametrize(
    ("dtype", "temperature", "rule", "promised"),
    [
        ("float32", 0.0, "", True),
        ("float32", 0.0, "standard", True),
        ("float32", 1.0, "", True),
        ("float32", 1.0, "coupled", True),
        ("float32", 1.0, "standard", False),
        ("float32", 1.0, "block", False),
        ("float16", 0.0, "", True),
        ("int8", 1.0, "coupled", True),
        ("int8", 1.0, "block", False),
        ("bfloat16", 0.0, "", False),
        ("bfloat16", 1.0, "coupled", False),
    ],
)
def test_equal_text_is_claimed_only_where_it_is_promised(dtype, temperature, rule, promised):
    options = BenchOptions(target="m", dtype=dtype, temperature=temperature)
    assert options.promises_equal_text(rule) is promised


@pytest.mark.parametrize(("multiplies", "named"), [(True, "bfloat16"), (False, "float16")])
def test_what_is_claimed_and_shown_is_of_the_number_format_that_was_chosen(
    monkeypatch, multiplies, named
):
    told(monkeypatch, bfloat16=multiplies, half=True)
    options = BenchOptions(target="m")
    assert options.dtype == "auto"
    assert options.promises_equal_text("") is not multiplies
    assert plain(options, "plain", "a:1", "").exact is not multiplies
    assert {one.dtype for one in drafting(options, ["a:1"] * 4)} == {named}
    assert main.journal_settings(options, Schedule([], 1, (1,), {}))["--dtype"] == named


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"pacings": ("hasty",)}, "--pacings: 'hasty' is not one of adaptive, matched"),
        ({"rejection_sample_methods": ("greedy",)}, "--rejection-sample-methods: 'greedy'"),
        ({"drafters": ("oracle",)}, "--drafters: 'oracle' is not one of ngram, model"),
        ({"drafters": ("model",)}, "--drafters: model needs --draft"),
        ({"drafters": ("ngram+text",)}, "--drafters: ngram+text needs --draft"),
        ({"drafters": ("text@verifier",), "draft": "d"}, "a draft model runs in a process of its"),
        ({"drafters": ("eagle",), "draft": "d"}, "--drafters: eagle needs --head"),
        ({"drafters": ("model+eagle",), "draft": "d", "head": "h"}, "a head or a draft model"),
        ({"drafters": ("ngram",), "head": "h"}, "--head: none of --drafters names eagle"),
        ({"head": "h"}, "--head: none of --drafters names eagle"),
        ({"drafters": ("ngram+lookahead",)}, "--drafters: ngram+lookahead needs --lookahead"),
        ({"drafters": ("ngram@home",)}, "--drafters: 'home' is not one of verifier, pool"),
        ({"drafters": ("model@verifier",), "draft": "d"}, "a draft model runs in a process of its"),
        ({"drafters": ("ngram", "ngram")}, "--drafters: one of them is named twice"),
        ({"drafters": ("ngram",), "method": "ngram"}, "--drafters: not beside --method"),
        ({"concurrency": (1, 65)}, "--concurrency: levels are from 1 to 64"),
        ({"concurrency": ()}, "--concurrency: levels are from 1 to 64"),
        ({"concurrency": (8,)}, "--concurrency: 8 at a time need as many prompts, --set has 6"),
        ({"fixed_tokens": (0,)}, "--fixed-tokens: at least 1 token"),
        ({"prompt_set": "few"}, "--set: 'few' is not all, stratified or a number"),
        ({"peers": PeerOptions(("sglang",))}, "--peers: 'sglang' is not one of transformers"),
        ({"peers": PeerOptions(("assisted",))}, "--peers: assisted needs a model that drafts"),
        ({"peers": PeerOptions(("vllm",))}, "--peers: vllm needs --vllm-python"),
        ({"peers": PeerOptions(("llama.cpp",))}, "--peers: llama.cpp needs --llama-server"),
        ({"peers": PeerOptions(places=("gpu",))}, "--peer-cores: 'gpu' is not one of verifier"),
        (
            {"peers": PeerOptions(("vllm",), vllm_python="/nowhere/python")},
            "--vllm-python: /nowhere/python is not a command that can be run",
        ),
    ],
)
def test_an_unknown_name_ends_the_bench_before_anything_starts(changed, named, capsys):
    assert main.run_bench(replace(COMPARING, **changed)) == 1
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "answer", "tokens"), [(100, 24, 128), (63, 64, 128), (64, 64, 256)]
)
def test_a_peer_s_context_holds_the_longest_text_and_is_shared_by_most_runs(prompt, answer, tokens):
    assert context(prompt, answer) == tokens


def test_the_adaptive_pacing_has_another_name():
    assert BenchOptions(pacings=("eager", "thompson")).served_pacings == ("eager", "adaptive")
