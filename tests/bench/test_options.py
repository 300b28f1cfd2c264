"""Which configurations a bench runs, and what it may claim of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import main
from bench.options import PACINGS, BenchOptions, baselines, drafting

RULES = ("standard", "block", "coupled")
COMPARING = BenchOptions(target="m", temperature=1.0, rejection_sample_methods=RULES)


def names(options: BenchOptions) -> list[str]:
    return [one.name for one in drafting(options, ["a:1"] * len(options.served_pacings))]


def test_without_rules_every_pacing_uses_the_server_s_own():
    options = BenchOptions(target="m")
    made = list(drafting(options, ["a:1", "a:2"]))
    assert [(one.name, one.address) for one in made] == [("fixed", "a:1"), ("eager", "a:2")]
    assert all(not one.options for one in made)
    assert options.served_pacings == PACINGS
    assert not list(baselines(options))


def test_rules_are_told_apart_at_the_asynchronous_pacing():
    assert names(COMPARING) == ["eager, standard", "eager, block", "eager, coupled"]


def test_every_rule_stands_beside_the_standard_one_of_its_pacing():
    options = replace(COMPARING, pacings=("fixed", "eager"))
    assert list(baselines(options)) == [
        ("fixed, block", "fixed, standard"),
        ("fixed, coupled", "fixed, standard"),
        ("eager, block", "eager, standard"),
        ("eager, coupled", "eager, standard"),
    ]


def test_without_the_standard_rule_the_first_one_is_the_measure():
    options = replace(COMPARING, rejection_sample_methods=("coupled", "block"))
    assert list(baselines(options)) == [("eager, block", "eager, coupled")]


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
        ("bfloat16", 0.0, "", False),
        ("bfloat16", 1.0, "coupled", False),
    ],
)
def test_equal_text_is_claimed_only_where_it_is_promised(dtype, temperature, rule, promised):
    options = BenchOptions(target="m", dtype=dtype, temperature=temperature)
    assert options.promises_equal_text(rule) is promised


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"pacings": ("hasty",)}, "--pacings: 'hasty' is not one of fixed, eager"),
        ({"rejection_sample_methods": ("greedy",)}, "--rejection-sample-methods: 'greedy'"),
    ],
)
def test_an_unknown_name_ends_the_bench_before_anything_starts(changed, named, capsys):
    assert main.run_bench(replace(COMPARING, **changed)) == 1
    assert named in capsys.readouterr().err
