"""A peer's process: how it is asked, how it fails, and that nothing of it is left."""

import asyncio
import os

import psutil
import pytest

from bench.peers.process import PeerSpec, peer_process
from services.contract.errors import StartError
from tests.bench.peers.kit import ask, child
from tests.waiting import until

ECHO = """
import sys, threading, time
from bench.peers.lines import Lines, serve_in_turn

lines = Lines()
print("what a library prints is no answer")

def answer(request):
    if request.way == "fails":
        raise ValueError("not\\nthis way")
    if request.way == "dies":
        print("the last words", file=sys.stderr)
        sys.stderr.flush()
        import os
        os._exit(3)
    for token in request.token_ids[: request.max_tokens]:
        lines.tokens(request, [token], 0)
    lines.end(request, "length")

def load(settings):
    if "broken" in settings:
        raise OSError("no such model")
    return f"echo for {settings['model']}", answer

sys.exit(serve_in_turn(lines, load))
"""
FORKS = """
import subprocess, sys
from bench.peers.lines import Lines
lines = Lines()
lines.settings()
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
lines.ready(str(other.pid))
for _ in lines.requests():
    pass
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules of these texts that a child finds."""
    (tmp_path / "echo_child.py").write_text(ECHO)
    (tmp_path / "forking_child.py").write_text(FORKS)
    (tmp_path / "chatty_child.py").write_text("print('good morning', flush=True)\n")
    (tmp_path / "mute_child.py").write_text("import sys; sys.exit('no licence')\n")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return tmp_path


async def test_answers_come_back_to_whom_they_belong(modules):
    async with child("echo_child", modules, model="m") as peer:
        assert peer.about == "echo for m"
        asked = [ask(peer, "plain", range(start, start + 20)) for start in (0, 100, 200)]
        answers = await asyncio.gather(*asked)
    assert [one.token_ids for one in answers] == [
        tuple(range(start, start + 8)) for start in (0, 100, 200)
    ]
    assert all(one.total_s >= one.first_token_s > 0 for one in answers)


async def test_a_request_that_fails_is_one_line_and_others_go_on(modules):
    async with child("echo_child", modules, model="m") as peer:
        with pytest.raises(StartError, match=r"^peer failed: ValueError: not this way$"):
            await ask(peer, "fails", [1])
        assert (await ask(peer, "plain", [1, 2])).token_ids == (1, 2)


async def test_a_child_that_dies_fails_what_was_asked_and_what_is_asked_later(modules):
    async with child("echo_child", modules, model="m") as peer:
        for _ in range(2):
            with pytest.raises(StartError, match="peer failed: the last words"):
                await ask(peer, "dies", [1])


@pytest.mark.parametrize(
    ("module", "settings", "reason"),
    [
        ("echo_child", {"broken": True}, "OSError: no such model"),
        ("chatty_child", {}, "it does not speak JSON lines"),
        ("mute_child", {}, "no licence"),
        ("no_such_child", {}, "No module named no_such_child"),
    ],
)
async def test_a_child_that_does_not_start_is_one_line(modules, module, settings, reason):
    with pytest.raises(StartError, match=f"--peers: peer did not start: .*{reason}") as caught:
        async with child(module, modules, **settings):
            pass
    assert "\n" not in str(caught.value)


async def test_an_interpreter_that_is_none_is_one_line(tmp_path):
    spec = PeerSpec("vllm", str(tmp_path), "bench.peers.vllm_child")
    with pytest.raises(StartError, match=r"--peers: vllm did not start: .*Permission denied"):
        async with peer_process(spec, tmp_path):
            pass


async def test_what_a_child_started_ends_with_it(modules):
    async with child("forking_child", modules) as peer:
        other = psutil.Process(int(peer.about))
        assert other.is_running()
    _, alive = psutil.wait_procs([other], timeout=60)
    assert all(one.status() == psutil.STATUS_ZOMBIE for one in alive)


async def test_a_child_stands_still_while_it_is_not_asked(modules):
    async with child("forking_child", modules) as peer:
        other = psutil.Process(int(peer.about))
        process = psutil.Process(other.ppid())
        await still(process, other)
    async with child("echo_child", modules, model="m") as peer:
        process = psutil.Process(peer._process.pid)
        await still(process)
        answers = [ask(peer, "plain", range(8)) for _ in range(20)]
        assert all(len(one.token_ids) == 8 for one in await asyncio.gather(*answers))
        await still(process)
        with pytest.raises(StartError):
            await ask(peer, "fails", [1])
        await still(process)


async def still(*processes):
    """Wait until all of them are stopped."""
    await until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in processes))
