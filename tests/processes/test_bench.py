"""`paceline bench` from end to end: real processes, a peer beside them, everything written."""

from __future__ import annotations

import json

import pytest

from tests.processes.conftest import run

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
        "--target": models / "llama-0",
        "--prompts": prompts,
        "--set": "all",
        "--max-tokens": 8,
        "--repeats": 1,
        "--pacings": "eager",
        "--peers": "transformers",
        "--resume": tmp_path / "trials.jsonl",
        "--out": tmp_path / "bench.json",
    }
    words = [str(word) for pair in flags.items() for word in pair]
    done = run("bench", *words, timeout=280)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "bench.json").read_text())
    [level] = written["levels"]
    names = [one["configuration"] for one in level["figures"]]
    assert names == ["plain", "eager", "transformers"]
    assert [one["same_text_as_plain"] for one in level["figures"]] == [[2, 2]] * 3
    plain, eager, peer = level["figures"]
    assert plain["orchestrator_cpu_ms"]["median"] > 0
    assert eager["split"]["verify"] > 0
    assert peer["split"] is None
    assert (tmp_path / "bench-speed-up.svg").exists()
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 1 + len(written["trials"])
