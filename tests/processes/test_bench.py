"""`paceline bench` from end to end: real processes, a peer beside them, everything written."""

import json
from functools import partial

import pytest

from bench import runner
from bench.options import NO_DRAFTS
from bench.prompts import BenchPrompt
from bench.runner import Configuration, Schedule, Trial, run_schedule
from services.cluster.fresh import NotFresh, recalled_tokens
from services.cluster.local import local_cluster
from services.cluster.specs import ClusterOptions
from tests.processes.conftest import PROMPT, run

pytestmark = pytest.mark.processes


def test_one_command_compares_ours_with_a_peer_and_writes_what_it_found(models, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    texts = ("the small drafter rides ahead", "the large verifier checks")
    prompts.write_text(
        "".join(
            json.dumps({"question_id": number, "category": "qa", "turns": [text]}) + "\n"
            for number, text in enumerate(texts)
        )
    )
    flags = {
        "--target": models / "llama-0", "--dtype": "float32", "--prompts": prompts, "--set": "all",
        "--max-tokens": 8, "--repeats": 1, "--pacings": "eager", "--peers": "transformers",
        "--resume": tmp_path / "trials.jsonl", "--out": tmp_path / "bench.json",
        "--summary": tmp_path / "summary.json",
    }  # fmt: skip
    done = run("bench", *[str(word) for pair in flags.items() for word in pair], timeout=800)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "bench.json").read_text())
    [level] = written["levels"]
    assert [one["configuration"] for one in level["figures"]] == ["plain", "eager", "transformers"]
    plain, eager, peer = level["figures"]
    # A peer in another number format writes what it likes.
    same = [2, 2] if peer["dtype"] == "float32" else None
    assert [one["same_text_as_plain"] for one in level["figures"]] == [[2, 2], [2, 2], same]
    assert [one["cached_share"] for one in level["figures"]] == [0.0] * 3
    assert eager["recalled_tokens"] == 0
    assert f"transformers is given {peer['dtype']}" in done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["levels"] == written["levels"]
    assert plain["orchestrator_cpu_ms"]["median"] > 0
    assert eager["split"]["verify"] > 0
    assert peer["split"] is None
    assert (tmp_path / "bench-speed-up.svg").exists()
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 1 + len(written["trials"])


def silent(_: str) -> None:
    """Nobody reads along."""


async def test_sessions_that_share_a_scope_are_found_out_and_those_of_a_bench_share_none(
    models, monkeypatch
):
    async with local_cluster(ClusterOptions(str(models / "llama-0")), silent) as cluster:
        recalled = partial(recalled_tokens, cluster.workers)
        configurations = [
            Configuration("plain", cluster.address, options=NO_DRAFTS),
            Configuration("drafted", cluster.address, recalled=recalled),
        ]
        sampling = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
        prompts = [BenchPrompt(1, "qa", PROMPT), BenchPrompt(2, "rag", PROMPT[::-1])]
        schedule = Schedule(prompts, repeats=2, sampling=sampling)

        trials: list[Trial] = []
        await run_schedule(configurations, schedule, trials.append, silent)
        assert len(trials) == 8
        assert {trial.recalled for trial in trials} == {None, 0}

        # The same prompts again, by sessions that give and take what a tenant's do.
        seen: list[Trial] = []
        await run_schedule(
            configurations,
            Schedule(prompts, repeats=1, sampling=sampling, seen_before=True),
            seen.append,
            silent,
        )
        usages = [trial.results[0].complete.usage for trial in seen]
        assert all(usage.cached_tokens >= 16 for usage in usages)
        assert sum(trial.recalled or 0 for trial in seen) > 0

        monkeypatch.setattr(runner, "FRESH", {})
        with pytest.raises(NotFresh, match=r"^plain, prompt 1 \(qa\), .* came from a cache"):
            await run_schedule(configurations, schedule, silent, silent)
