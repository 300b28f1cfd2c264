"""A verifier of several processes, each with a part of vLLM's model: served as one, lost as one."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testkit.child import child
from tests.models import tiny_tokenizer
from tests.processes.conftest import COMMAND, PROMPT, Up, start_up, tokens
from tests.vllm.kit import READ, START_SECONDS, plain, wide_folder

pytestmark = pytest.mark.timeout(1800)

IDS = tuple(tiny_tokenizer().encode(PROMPT))
SPLIT = ("--engine", "vllm", "--tensor-parallel", "2")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture
def up(target: Path, tmp_path: Path) -> Iterator[Up]:
    running = start_up(tmp_path, *SPLIT, "--target", str(target), seconds=START_SECONDS)
    yield running
    running.process.terminate()
    running.process.wait(timeout=60)
    assert running.left() == []


def followers_of(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children() if "services.engine.vllm.follower" in one.cmdline()]


def test_its_text_is_that_of_one_process_and_a_lost_rank_is_a_lost_verifier(up: Up) -> None:
    asked = ("--temperature", "0", "--max-tokens", "40", "--ignore-eos")
    assert tokens(up.generate(*asked)) == plain("llama", IDS, 40)
    [verifier] = up.workers("verifier")
    [follower] = followers_of(verifier)
    follower.kill()
    psutil.wait_procs([verifier], timeout=15)
    assert not verifier.is_running()
    # `paceline up` starts another one.
    assert tokens(up.generate(*asked)) == plain("llama", IDS, 40)


def test_it_leaves_no_process_behind_and_says_which_rank_was_lost(
    target: Path, tmp_path: Path
) -> None:
    command = [*COMMAND, "verifier", "--target", target, "--threads", "1", "--port", "0"]
    ready = tmp_path / "ready"
    command += ["--ready-file", ready, *SPLIT]
    with child(command, ready, seconds=START_SECONDS, **READ) as process:
        [follower] = followers_of(psutil.Process(process.pid))
        follower.kill()
        assert process.wait(15) == 1
        assert process.stderr is not None
        [line] = [line for line in process.stderr.read().splitlines() if "tensor_parallel" in line]
        assert line.endswith("rank 1 of 2 is lost: SIGKILL; this verifier ends")


def test_the_other_rank_ends_with_one_that_is_killed(target: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [*COMMAND, "verifier", "--target", target, "--threads", "1", "--port", "0"]
    with child([*command, "--ready-file", ready, *SPLIT], ready, seconds=START_SECONDS) as process:
        [follower] = followers_of(psutil.Process(process.pid))
        process.kill()
        _, alive = psutil.wait_procs([follower], timeout=30)
        assert alive == []


SCRIPT = """
import sys
from services.engine import start
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.engine.vllm.ranks import Ranks
from services.runtime.logs import setup_logging

if __name__ == "__main__":
    setup_logging()
    spec = ModelSpec(
        sys.argv[1], threads=1, kv_capacity_tokens=2048, tensor_parallel=2, engine="vllm"
    )
    with Ranks(2, patience=5.0) as ranks:
        engine = start.load(spec, ranks)
        cache = engine.new_cache(8)
        while True:
            engine.forward([Segment(cache, [5])])
            cache.rollback(0)
            print("done", flush=True)
"""


def test_a_rank_that_stands_still_ends_the_process_with_one_line(target: Path) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert leader.stdout is not None
    assert leader.stdout.readline() == "done\n"
    [follower] = followers_of(psutil.Process(leader.pid))
    follower.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    _, errors = leader.communicate(timeout=120)
    assert leader.returncode == 1
    assert time.monotonic() - stopped < 60
    assert "tensor_parallel: a forward does not end: a rank stands still" in errors
    follower.wait(30)
