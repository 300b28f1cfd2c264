"""How ranks of other machines are let in: with the secret, once each, and others not at all."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.contract.errors import StartError
from services.engine.machines import Machines
from services.engine.vllm import meeting
from services.engine.vllm.meeting import Link, admit, hang_up, join, listen
from services.engine.vllm.ranks import Ranks
from services.verifier.settings import VerifierSettings

SECRET = b"sixteen bytes or more"
SIZE, COUNT = 4, 2
"""Ranks 2 and 3 are on another machine."""
Admitted = dict[int, Link]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "GREETING_SECONDS", 0.5)
    monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(meeting, "_RETRY_SECONDS", 0.05)


@pytest.fixture
def machines() -> Machines:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Machines(COUNT, 0, port=free.getsockname()[1])


@pytest.fixture
def rank_0(machines: Machines) -> Iterator[Future[Admitted]]:
    """What rank 0 lets in, until both of the other machine are there."""
    server = listen(machines)
    with ThreadPoolExecutor() as pool, server:
        admitted = pool.submit(lambda: dict(admit(server, SECRET, SIZE, COUNT, {2, 3})))
        yield admitted
        for rank in (2, 3):
            with suppress(StartError):
                if not wait([admitted], 0.2).done:
                    join(machines, SECRET, rank, SIZE)


def test_ranks_with_the_secret_are_let_in_and_speak_with_rank_0(
    machines: Machines, rank_0: Future[Admitted]
) -> None:
    theirs = {rank: join(machines, SECRET, rank, SIZE) for rank in (3, 2)}
    ours = rank_0.result(5)
    for rank, link in theirs.items():
        link.send(f"from rank {rank}")
        assert ours[rank].recv() == f"from rank {rank}"
        ours[rank].send_bytes(b"x" * 100_000)
        assert link.recv_bytes() == b"x" * 100_000


def test_another_secret_is_refused_on_both_sides(
    machines: Machines, rank_0: Future[Admitted], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartError, match="knows another secret"):
        join(machines, b"another secret of length", 2, SIZE)
    for rank in (2, 3):
        join(machines, SECRET, rank, SIZE)
    assert rank_0.result(5).keys() == {2, 3}
    assert "turned 127.0.0.1 away: digest received was wrong" in caplog.text


def test_a_rank_does_not_take_orders_from_one_that_does_not_know_the_secret(
    machines: Machines,
) -> None:
    server = listen(machines)

    def pretend() -> None:
        with suppress(Exception):
            next(admit(server, b"another secret of length", SIZE, COUNT, {2}))

    threading.Thread(target=pretend, daemon=True).start()
    with server, pytest.raises(StartError, match="knows another secret"):
        join(machines, SECRET, 2, SIZE)


@pytest.mark.parametrize(
    ("rank", "size", "said"),
    [
        (1, SIZE, "rank 1 is not waited for"),
        (7, SIZE, "rank 7 is not waited for"),
        (2, 8, "it is of 8 ranks on 2 machines, not of 4 on 2"),
    ],
)
def test_a_rank_of_other_settings_is_told_why(
    machines: Machines, rank_0: Future[Admitted], rank: int, size: int, said: str
) -> None:
    with pytest.raises(StartError, match=said):
        join(machines, SECRET, rank, size)
    assert not rank_0.done()


def test_a_rank_comes_once(machines: Machines, rank_0: Future[Admitted]) -> None:
    join(machines, SECRET, 2, SIZE)
    with pytest.raises(StartError, match="rank 2 is not waited for"):
        join(machines, SECRET, 2, SIZE)
    join(machines, SECRET, 3, SIZE)
    assert rank_0.result(5).keys() == {2, 3}


def silence(_: socket.socket) -> None: ...


def noise(peer: socket.socket) -> None:
    peer.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)


def much(peer: socket.socket) -> None:
    peer.sendall(b"\x7f\xff\xff\xff" + bytes(1_000))


@pytest.mark.parametrize("behave", [silence, noise, much])
def test_who_is_none_of_them_delays_the_others_for_a_moment_at_most(
    machines: Machines,
    rank_0: Future[Admitted],
    behave: Callable[[socket.socket], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_connection((machines.host, machines.port)) as stranger:
        behave(stranger)
        monkeypatch.setattr(meeting, "PATIENCE_SECONDS", 10.0)
        for rank in (2, 3):
            join(machines, SECRET, rank, SIZE)
    assert rank_0.result(5).keys() == {2, 3}
    assert "turned 127.0.0.1 away" in caplog.text


def test_many_who_say_nothing_delay_nobody(
    machines: Machines, rank_0: Future[Admitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "GREETING_SECONDS", 60.0)
    with ExitStack() as strangers:
        for _ in range(8):
            where = machines.host, machines.port
            strangers.enter_context(socket.create_connection(where))
        with ThreadPoolExecutor() as pool:
            for rank in (3, 2):
                pool.submit(join, machines, SECRET, rank, SIZE)
            assert rank_0.result(20).keys() == {2, 3}


def test_a_rank_gives_up_where_nobody_is(machines: Machines) -> None:
    with pytest.raises(StartError, match=rf"rank 0 at 127.0.0.1:{machines.port} is not there"):
        join(machines, SECRET, 2, SIZE)


def test_a_link_that_is_hung_up_ends_who_reads_it(
    machines: Machines, rank_0: Future[Admitted]
) -> None:
    link = join(machines, SECRET, 2, SIZE)
    join(machines, SECRET, 3, SIZE)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(link.recv_bytes)
        hang_up(rank_0.result(5)[2])
        with pytest.raises(EOFError):
            reading.result(5)


def test_rank_0_says_which_ranks_did_not_come(
    machines: Machines, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (secret := tmp_path / "secret").write_bytes(SECRET)
    of_one_each = Machines(3, 0, port=machines.port, secret_file=secret)
    with Ranks(3, machines=of_one_each) as ranks, pytest.raises(StartError, match="come: 1, 2"):
        ranks.load(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "said"), [(None, "No such file"), (b"short\n", "holds 5 bytes"), (b"", "0 bytes")]
)
def test_a_secret_that_is_none_stops_the_start(
    held: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    if held is not None:
        file.write_bytes(held)
    with pytest.raises(StartError, match=f"^rank_secret_file: .*{said}"):
        Machines(2, secret_file=file).secret()


def test_the_ranks_of_a_machine_are_neighbours() -> None:
    assert [list(Machines(2, here).ranks(4)) for here in (0, 1)] == [[0, 1], [2, 3]]
    assert list(Machines().ranks(3)) == [0, 1, 2]


SEVERAL = {
    "target": "m",
    "engine": "vllm",
    "tensor_parallel": 4,
    "nodes": 2,
    "rank_address": "[::1]:50054",
    "rank_secret_file": "secret",
}


def test_settings_say_where_the_ranks_are() -> None:
    machines = VerifierSettings(**{**SEVERAL, "node": 1, "host": "0.0.0.0"}).machines()
    assert (machines.count, machines.here, machines.listen) == (2, 1, "0.0.0.0")
    assert (machines.host, machines.port, machines.address) == ("::1", 50054, "[::1]:50054")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nodes": 3}, "nodes: 3 do not divide 4 processes"),
        ({"node": 2}, "node: 2 is none of 2"),
        ({"nodes": 1, "node": 1}, "node: 1 is none of 1"),
        ({"rank_address": ""}, "rank_address: several machines"),
        ({"rank_address": "somewhere"}, "rank_address"),
        ({"rank_secret_file": None}, "rank_secret_file: several machines"),
        ({"engine": "native"}, "only --engine vllm splits"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        VerifierSettings(**{**SEVERAL, **changed})
