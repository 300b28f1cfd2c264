"""The supervisor keeps real processes alive, and leaves none behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.cluster.supervisor import RestartPolicy, Supervisor
from services.contract.errors import StartError
from tests.console.children import DEAF, NOISY, REFUSE, SERVE, SLOW, child
from tests.waiting import until, wait_until

pytestmark = pytest.mark.processes

QUICK = RestartPolicy(first_pause=0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
async def supervised():
    """Makes supervisors, with the lines that they report; in the end all are stopped."""
    made: list[Supervisor] = []

    def make(**how) -> tuple[Supervisor, list[str]]:
        lines: list[str] = []
        made.append(Supervisor(report=lines.append, **how))
        return made[-1], lines

    yield make
    for supervisor in made:
        await supervisor.stop()


async def test_start_returns_the_address_of_every_child_in_order(tmp_path, supervised):
    supervisor, _ = supervised()
    names = ["verifier-1", "drafter-1"]
    addresses = await supervisor.start([child(tmp_path, name, SERVE) for name in names])
    assert addresses == [f"127.0.0.1:{supervisor.pids[name]}" for name in names]


async def test_what_a_long_start_is_about_is_told_once_for_each_part(
    tmp_path, supervised, monkeypatch
):
    monkeypatch.setattr("services.cluster.supervisor.TELL_S", 0.01)
    supervisor, lines = supervised()
    starting = asyncio.create_task(supervisor.start([child(tmp_path, "verifier", SLOW)]))
    await until(lambda: lines == ["verifier reads m.gguf"])
    await asyncio.sleep(0.1)
    (tmp_path / "verifier.ready.on").touch()
    await until(lambda: lines == ["verifier reads m.gguf", "verifier packs its weights"])
    (tmp_path / "verifier.ready.end").touch()
    [address] = await starting
    assert lines[2:] == [f"verifier serves on {address}"]


async def test_why_a_child_did_not_start_is_what_it_said_and_not_what_a_library_wrote_behind_it(
    tmp_path, supervised
):
    supervisor, _ = supervised()
    with pytest.raises(StartError, match=r"weights.safetensors is not a weights file$"):
        await supervisor.start([child(tmp_path, "verifier-1", NOISY)])
    assert "NCCL" in (tmp_path / "verifier-1.log").read_text()


async def test_a_child_that_dies_is_started_again_and_reported_in_one_line(tmp_path, supervised):
    supervisor, lines = supervised(policy=QUICK)
    await supervisor.start([child(tmp_path, "drafter-1", SERVE)])
    first = supervisor.pids["drafter-1"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.pids.get("drafter-1", first) != first)
    assert len(lines) == 2
    assert lines[0] == f"drafter-1 serves on 127.0.0.1:{first}"
    assert lines[1].startswith("drafter-1 died")


async def test_stop_leaves_no_child(tmp_path, supervised):
    supervisor, _ = supervised()
    await supervisor.start([child(tmp_path, name, SERVE) for name in ("a", "b", "c")])
    pids = list(supervisor.pids.values())
    assert len(pids) == 3
    await supervisor.stop()
    assert not any(alive(pid) for pid in pids)


async def test_a_child_that_ignores_the_request_to_stop_is_killed(tmp_path, supervised):
    supervisor, lines = supervised(grace=0.3)
    await supervisor.start([child(tmp_path, "deaf", DEAF)])
    pid = supervisor.pids["deaf"]
    await supervisor.stop()
    assert not alive(pid)
    assert "killed" in lines[-1]


async def test_a_stop_while_a_dead_child_waits_to_be_started_again_starts_nothing(
    tmp_path, supervised
):
    supervisor, lines = supervised(policy=RestartPolicy(first_pause=60.0))
    await supervisor.start([child(tmp_path, "a", SERVE)])
    os.kill(supervisor.pids["a"], signal.SIGKILL)
    await until(lambda: "died" in lines[-1])
    await supervisor.stop()
    assert supervisor.pids == {}


async def test_a_child_that_refuses_to_start_ends_the_start_with_its_own_last_line(
    tmp_path, supervised
):
    supervisor, _ = supervised()
    old = child(tmp_path, "verifier-1", REFUSE)
    old.ready_file.write_text("127.0.0.1:1\n")  # of an earlier life: it makes no child ready
    with pytest.raises(StartError) as caught:
        await supervisor.start([child(tmp_path, "drafter-1", SERVE), old])
    await supervisor.stop()
    expected = "verifier-1 did not start: weights.safetensors is not a weights file"
    assert str(caught.value) == expected
    assert supervisor.pids == {}


async def test_what_libraries_write_behind_a_childs_own_words_hides_them_from_nobody(
    tmp_path, supervised
):
    supervisor, _ = supervised()
    dying = """
import atexit, sys
from services.cluster.flags import complain
from services.contract.errors import StartError
atexit.register(print, "[W] destroy_process_group() was not called", file=sys.stderr)
sys.exit(complain("verifier", StartError("model m: no weights"), 1))
"""
    with pytest.raises(StartError, match=r"paceline verifier: model m: no weights$"):
        await supervisor.start([child(tmp_path, "verifier-1", dying)])


async def test_a_child_that_never_gets_ready_is_given_up_and_stopped(tmp_path, supervised):
    supervisor, _ = supervised(start_timeout=0.3)
    with pytest.raises(StartError, match="not ready"):
        await supervisor.start([child(tmp_path, "verifier-1", "import time; time.sleep(600)")])
    pid = supervisor.pids["verifier-1"]
    await supervisor.stop()
    assert not alive(pid)


def test_a_tethered_child_ends_with_a_parent_that_was_killed(tmp_path):
    ready = tmp_path / "pid"
    grandchild = f"""
import os, sys, time
from services.runtime.tether import die_with
die_with(int(sys.argv[1]))
open({str(ready)!r} + ".part", "w").write(str(os.getpid()))
os.rename({str(ready)!r} + ".part", {str(ready)!r})
time.sleep(600)
"""
    parent = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", {grandchild!r}, str(os.getpid())]).wait()
"""
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=Path.cwd())
    wait_until(ready.exists)
    pid = int(ready.read_text())
    assert alive(pid)
    process.kill()
    process.wait()
    wait_until(lambda: not alive(pid))


def test_a_process_whose_parent_is_already_gone_does_not_start():
    program = "from services.runtime.tether import die_with; die_with(1 << 30)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert "gone" in done.stderr


@pytest.mark.parametrize(("deaths", "pause"), [(1, 0.5), (2, 1.0), (3, 2.0), (5, 4.0), (500, 4.0)])
def test_the_pause_doubles_up_to_the_longest(deaths, pause):
    assert RestartPolicy(first_pause=0.5, longest_pause=4.0).pause(deaths) == pause


def test_a_steady_life_ends_the_row_of_deaths():
    policy = RestartPolicy(steady_after=30.0)
    assert policy.deaths_in_a_row(4, lifetime=1.0) == 5
    assert policy.deaths_in_a_row(4, lifetime=31.0) == 1
