"""A verifier of several processes: it serves as one, and is lost as one."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from services.contract.errors import StartError
from services.verifier.main import run as serve
from services.verifier.settings import VerifierSettings
from testkit.chaos.listener import until
from testkit.chaos.member import Member
from testkit.chaos.models import tiny_models
from testkit.chaos.site import START_SECONDS, VERIFIER, Layout
from testkit.child import child
from tests.faults.conftest import served
from tests.faults.kit import Site
from tests.processes.conftest import COMMAND

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SPLIT = ("--tensor-parallel", "2")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of plain verifiers, and what it says."""
    target, _ = tiny_models(tmp_path_factory.mktemp("models"))
    with served(Layout(target, verifiers=2, drafters=1, orchestrators=1)) as site:
        yield site


def followers_of(member: Member) -> list[psutil.Process]:
    children = psutil.Process(member.pid).children()
    return [child for child in children if "services.engine.follower" in child.cmdline()]


async def test_its_text_is_that_of_one_process_and_outlives_a_lost_rank(site: Site):
    split, plain = site.cluster.of(VERIFIER)
    for verifier in (split, plain):
        verifier.kill()
    split.spec = replace(split.spec, argv=(*split.spec.argv, *SPLIT))
    split.start()
    split.wait(START_SECONDS)
    async with site.streams() as streams:
        [follower] = followers_of(split)
        assert any(stream.running for stream in streams)
        follower.kill()
        killed = time.monotonic()
        await until(lambda: not split.alive)
        assert split.process is not None
        assert split.process.returncode == 1
        assert time.monotonic() - killed < 15
        [line] = [line for line in split.words().splitlines() if "tensor_parallel" in line]
        assert line.endswith("rank 1 of 2 is lost: SIGKILL; this verifier ends")
        plain.start()
    assert {stream.transcript.verifier for stream in streams} == {plain.name}


@contextmanager
def verifier(target: Path, ready: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*COMMAND, "verifier", "--target", target, "--threads", "1", "--port", "0"]
    command += ["--ready-file", ready, *SPLIT]
    with child(command, ready, stderr=subprocess.PIPE, text=True) as process:
        yield process


def test_it_leaves_no_process_behind_however_it_ends(models: Path, tmp_path: Path):
    target = models / "llama-0"
    readies = [tmp_path / "killed", tmp_path / "stopped"]
    with verifier(target, readies[0]) as killed, verifier(target, readies[1]) as stopped:
        others = [psutil.Process(one.pid).children()[0] for one in (killed, stopped)]
        killed.send_signal(signal.SIGKILL)
        stopped.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(others, timeout=30)
        assert alive == []
        assert stopped.wait(30) == 0
        assert stopped.stderr is not None
        assert "tensor_parallel" not in stopped.stderr.read()


def test_a_target_that_cannot_be_divided_stops_the_start(models: Path):
    target = str(models / "llama-0")
    settings = VerifierSettings(target=target, tensor_parallel=4, threads=1)
    before = psutil.Process().children()
    with pytest.raises(StartError) as raised:
        serve(settings)
    words = f"4 does not divide 2, the num_key_value_heads of {target}"
    assert str(raised.value) == f"tensor_parallel: {words}"
    assert psutil.Process().children() == before


SCRIPT = """
import sys
from pathlib import Path
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.engine.native.parallel.leader import Leader
from services.engine.native.parallel.ranks import Ranks
from services.runtime.logs import setup_logging

setup_logging()
spec = ModelSpec(sys.argv[1], threads=1, kv_capacity_tokens=256, tensor_parallel=2)
with Ranks(2, patience=4.0) as ranks:
    leader = Leader.load(spec, ranks)
    cache = leader.new_cache(8)
    while True:
        leader.forward([Segment(cache, [5])])
        cache.rollback(0)
        print("done", flush=True)
"""


def test_a_rank_that_stands_still_ends_the_process_with_one_line(models: Path):
    leader = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(models / "llama-0")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert leader.stdout is not None
    assert leader.stdout.readline() == "done\n"
    [follower] = psutil.Process(leader.pid).children()
    follower.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    _, errors = leader.communicate(timeout=120)
    assert leader.returncode == 1
    assert time.monotonic() - stopped < 60
    [line] = errors.splitlines()
    assert "tensor_parallel: a forward failed: " in line
    follower.wait(30)
