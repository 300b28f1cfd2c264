"""A model over two machines, which are this one twice: served as one, lost as one."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from services.runtime.ports import free_port
from testkit.child import child
from tests.models import tiny_tokenizer
from tests.processes.conftest import COMMAND, PROMPT
from tests.vllm.kit import READ, START_SECONDS, plain, wide_folder

pytestmark = pytest.mark.timeout(1800)

IDS = tuple(tiny_tokenizer().encode(PROMPT))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture
def shared(tmp_path: Path) -> Sequence[str]:
    """What both machines are told."""
    (secret := tmp_path / "secret").write_text("a secret of a test")
    address = f"127.0.0.1:{free_port()}"
    flags = ("--engine", "vllm", "--tensor-parallel", "2", "--nodes", "2", "--threads", "1")
    return (*flags, "--rank-address", address, "--rank-secret-file", str(secret))


@contextmanager
def both(
    shared: Sequence[str], target: Path, ready: Path
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Machine 0, once it serves, and machine 1, which is told of no model."""
    other = subprocess.Popen(
        [*COMMAND, "verifier", "--target", "as machine 0 says", "--node", "1", *shared],
        **READ,
    )
    command = [*COMMAND, "verifier", "--target", str(target), "--port", "0", *shared]
    command += ["--ready-file", str(ready)]
    try:
        with child(command, ready, seconds=START_SECONDS, **READ) as first:
            yield first, other
    finally:
        other.kill()
        other.wait()


def rank_of(machine: subprocess.Popen[str]) -> psutil.Process:
    [rank] = psutil.Process(machine.pid).children()
    return rank


def test_a_lost_rank_ends_both_machines_and_machine_0_says_which(
    shared: Sequence[str], target: Path, tmp_path: Path
) -> None:
    with both(shared, target, tmp_path / "ready") as (first, other):
        rank_of(other).kill()
        assert first.wait(30) == 1
        assert other.wait(30) == 1
        assert first.stderr is not None
        [line] = re.findall("tensor_parallel: .*", first.stderr.read())
        assert line == "tensor_parallel: rank 1 of 2 is lost: closed its link; this verifier ends"


def test_the_other_machine_ends_with_machine_0_and_not_before(
    shared: Sequence[str], target: Path, tmp_path: Path
) -> None:
    with both(shared, target, tmp_path / "ready") as (first, other):
        rank = rank_of(other)
        # A group of pods is stopped together, and machine 0 drains first.
        other.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(2)
        assert other.poll() is None
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        assert other.wait(30) == 0
        assert not rank.is_running()


SCRIPT = """
import sys
from services.engine import start
from services.runtime.logs import setup_logging
from services.verifier.main import _model_spec
from services.verifier.settings import VerifierSettings
from services.cluster.flags import Flags
from tests.vllm.kit import greedy

if __name__ == "__main__":
    setup_logging()
    flags = Flags("", "", VerifierSettings)
    flags.parse(sys.argv[2:])
    settings = flags.read(VerifierSettings)
    with start.ranks(2, (), settings.machines()) as ranks:
        engine = start.load(_model_spec(settings), ranks)
        ids = [int(word) for word in sys.argv[1].split(",")]
        print(*greedy(engine, ids, 12), sep=",", flush=True)
"""


def test_a_model_over_two_machines_says_what_it_says_on_one(
    shared: Sequence[str], target: Path
) -> None:
    other = subprocess.Popen([*COMMAND, "verifier", "--target", "x", "--node", "1", *shared])
    ids = ",".join(map(str, IDS))
    flags = ("--target", str(target), "--kv-capacity-tokens", "2048", *shared)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ids, *flags],
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_SECONDS,
        check=True,
    )
    assert [int(word) for word in done.stdout.split(",")] == plain("llama", IDS, 12)
    assert other.wait(30) == 0
