"""A whole local cluster in real processes, with real signals."""

import signal
import subprocess

import psutil
import pytest
import torch
from paceline import Chunk, Client

from tests.models import tiny_model, tiny_tokenizer
from tests.processes.conftest import KV_TOKENS, PROMPT, START_SECONDS, Up, run, start_up, tokens
from tests.waiting import until

pytestmark = pytest.mark.processes


def plain(count: int) -> list[int]:
    """What transformers' own greedy decoding says."""
    ids = torch.tensor([tiny_tokenizer().encode(PROMPT)])
    out = tiny_model("llama").generate(
        ids, max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    text = out[0, ids.shape[1] :].tolist()
    return text[: text.index(1) + 1] if 1 in text else text


def test_three_separate_processes_and_a_store_serve_one_request(up: Up):
    assert [len(up.workers(role)) for role in ("orchestrator", "drafter", "verifier")] == [1, 1, 1]
    assert any("paceline-redis" in " ".join(p.cmdline()) for p in up.everything())
    events = up.generate("--max-tokens", "40", "--temperature", "0")
    assert tokens(events) == plain(40)
    assert [events[0]["event"], events[-1]["event"]] == ["started", "complete"]
    assert events[-1]["speculation"]["num_draft_tokens"] > 0


async def test_a_section_of_the_file_reaches_its_processes(up: Up):
    async with Client(up.address) as client:
        workers = (await client.server_info()).workers
    told = [one.kv_tokens_capacity for one in workers if one.role == "verifier"]
    assert told == [KV_TOKENS]


def test_the_orchestrator_has_neither_torch_nor_weights_in_memory(up: Up):
    [orchestrator] = up.workers("orchestrator")
    loaded = {entry.path for entry in orchestrator.memory_maps()}
    assert not [path for path in loaded if "torch" in path or "safetensors" in path]


@pytest.mark.parametrize("role", ["drafter", "verifier"])
async def test_a_worker_killed_in_the_middle_is_replaced_and_the_text_is_the_same(up: Up, role):
    [victim] = up.workers(role)
    got: list[int] = []
    async with Client(up.address) as client:
        alone = await client.generate(
            PROMPT,
            temperature=0.0,
            max_tokens=400,
            ignore_eos=True,
            disable_speculative_decoding=True,
        )
        stream = client.generate(PROMPT, temperature=0.0, max_tokens=400, ignore_eos=True)
        async for event in stream:
            if isinstance(event, Chunk):
                got += event.token_ids
                if len(got) > 20 and victim.is_running():
                    victim.send_signal(signal.SIGKILL)
        assert got == list(alone.token_ids)
        await until(lambda: len(up.workers(role)) == 1, START_SECONDS)
        [fresh] = up.workers(role)
        assert fresh.pid != victim.pid

        async def connected() -> bool:
            info = await client.server_info()
            return any(worker.role == role and worker.connected for worker in info.workers)

        await until(connected, START_SECONDS, f"no {role} came back")


def test_a_bad_request_ends_with_one_line_and_a_status(up: Up):
    done = run("generate", "--address", up.address, "--temperature", "-1", "hello")
    assert done.returncode == 1
    assert "sampling.temperature" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_killing_the_parent_leaves_no_process_behind(up: Up):
    """The last test of this cluster."""
    assert all(up.workers(role) for role in ("orchestrator", "drafter", "verifier"))
    up.process.kill()
    up.process.wait(timeout=60)
    assert up.left() == []


def complaint(*arguments: str) -> str:
    """The one line with which a command that cannot start ends."""
    done = run(*arguments)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("paceline")]
    return lines[-1] if lines else done.stderr


def test_a_model_that_is_not_there_ends_the_start_with_one_line(tmp_path):
    assert "nowhere" in complaint("up", "--port", "0", "--target", str(tmp_path / "nowhere"))


def test_broken_weights_end_the_start_with_one_line(models, tmp_path):
    broken = tmp_path / "broken"
    subprocess.run(["cp", "-r", str(models / "llama-0"), str(broken)], check=True)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "broken" in complaint("verifier", "--target", str(broken))


def test_a_redis_that_refuses_ends_the_start_with_one_line():
    line = complaint("orchestrator", "--port", "0", "--redis", "redis://127.0.0.1:1")
    assert "Redis at redis://127.0.0.1:1 does not answer" in line


def test_a_verifier_that_does_not_answer_ends_the_start_with_one_line():
    line = complaint(
        "orchestrator",
        "--port",
        "0",
        "--start-timeout",
        "1",
        "--verifier-addresses",
        "127.0.0.1:1",
    )
    assert "no verifier within 1 s: 127.0.0.1:1" in line


def test_a_verifier_that_drafts_too_says_the_same_and_ctrl_c_leaves_no_process(models, tmp_path):
    up = start_up(tmp_path, "--target", str(models / "llama-0"), "--method", "skip")
    assert [len(up.workers(role)) for role in ("drafter", "verifier")] == [0, 1]
    events = up.generate("--max-tokens", "40", "--temperature", "0")
    assert tokens(events) == plain(40)
    told = events[-1]["speculation"]
    assert told["num_draft_tokens"] > 0
    assert {own["source"] for own in told["sources"]} == {"skip"}
    assert (up.stop(), up.left()) == (0, [])


def test_a_method_that_cannot_draft_beside_the_verifier_is_refused_before_weights_are_read():
    line = complaint("verifier", "--target", "no-such-model", "--drafting", "skip,model")
    assert "model runs a draft model" in line


def test_a_cluster_without_drafters_decodes_plainly_and_ends_by_sigterm(models, tmp_path):
    up = start_up(tmp_path, "--target", str(models / "llama-0"), "--drafters", "0")
    [orchestrator] = up.workers("orchestrator")
    assert psutil.pid_exists(up.workers("verifier")[0].pid)
    assert tokens(up.generate("--max-tokens", "5", "--temperature", "0")) == plain(5)
    up.process.terminate()
    assert up.process.wait(timeout=60) == 0
    assert not orchestrator.is_running()
