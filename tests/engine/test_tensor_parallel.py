"""A model over two processes computes what it computes in one, whatever is done to its caches."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from services.contract.errors import Overloaded, StartError
from services.engine.native import NativeEngine, PagedCache
from services.engine.native import device_memory as engine_room
from services.engine.native import prepare as preparing
from services.engine.native.device_memory import free_bytes
from services.engine.native.kv import PagedBudget
from services.engine.native.loading import read_folder
from services.engine.native.packing import PackedLinear
from services.engine.native.parallel import mirror as mirroring
from services.engine.native.parallel import ranks, shards
from services.engine.native.parallel.following import follow
from services.engine.native.parallel.leader import Leader
from services.engine.native.parallel.messages import LastWords
from services.engine.native.parallel.ranks import Ranks
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.engine.conftest import engine_of, random_text
from tests.models import tiny_model, tiny_model_folder

CAPACITY = 2048


def spec_of(folder: Path) -> ModelSpec:
    return ModelSpec(str(folder), threads=1, kv_capacity_tokens=CAPACITY, tensor_parallel=2)


# --- two processes ----------------------------------------------------------------

Both = tuple[Leader, NativeEngine]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    """An engine over two processes, and one with the same weights in this process alone."""
    folder = tiny_model_folder(tmp_path_factory.mktemp("models"), request.param)
    spec, before = spec_of(folder), psutil.Process().children()
    with Ranks(2) as others:
        leader = Leader.load(spec, others)
        yield leader, NativeEngine.load(replace(spec, tensor_parallel=1))
        assert leader.kv_tokens_used == 0, "the test left a cache open"
    assert psutil.Process().children() == before, "the other rank is still there"


class Pairs:
    """Sessions that exist twice, and random things that happen to both."""

    def __init__(self, both: Both, seed: int) -> None:
        self.engines = both
        self.chance = random.Random(seed)
        self.sessions: list[tuple[PagedCache, PagedCache]] = []
        self.happened: Counter[str] = Counter()

    def play(self, moves: int) -> None:
        for _ in range(moves):
            match self.chance.randrange(11):
                case 0 | 1 if len(self.sessions) < 6:
                    self.new()
                case 2 if self.sessions:
                    self.drop()
                case 3 if 0 < len(self.sessions) < 6:
                    self.fork()
                case 4 if self.sessions:
                    self.turn()
                case 5 if 0 < len(self.sessions) < 6:
                    self.copy()
                case 6 if self.sessions:
                    pair = self.chance.choice(self.sessions)
                    self.call(pair, "grow", pair[1].reserve + 16)
                case _ if self.sessions:
                    self.change()
            self.feed()
        while self.sessions:
            self.drop()

    def new(self) -> None:
        reserve = self.chance.randint(40, 160)
        first, second = (engine.new_cache(reserve) for engine in self.engines)
        self.sessions.append((first, second))

    def drop(self) -> None:
        self.call(self.sessions.pop(self.chance.randrange(len(self.sessions))), "free")

    def fork(self) -> None:
        self.happened["fork"] += 1
        first, second = (one.fork(one.reserve) for one in self.chance.choice(self.sessions))
        self.sessions.append((first, second))

    def turn(self) -> None:
        """A text ends and is the beginning of another one."""
        pair = self.chance.choice(self.sessions)
        if pair[1]._tree is None:
            self.happened["turn"] += 1
            self.sessions.remove(pair)
            first, second = (one.park() for one in pair)
            self.sessions.append((first, second))
            self.call((first, second), "claim", max(64, second.length + 20))

    def copy(self) -> None:
        """Another session begins as this one does."""
        pair = self.chance.choice(self.sessions)
        base = pair[1].length if pair[1]._tree is None else pair[1]._tree[0]
        length = self.chance.randint(0, base)
        self.new()
        for one, other in zip(self.sessions[-1], pair, strict=True):
            one.grow(length + 20)
            one.copy_prefix(other, length)
        self.happened["copy"] += 1

    def change(self) -> None:
        """Resolve an open tree, or forget some of the text."""
        pair = self.chance.choice(self.sessions)
        length = pair[1].length
        if pair[1]._tree is None:
            self.call(pair, "rollback", self.chance.randint(length // 2, length))
            return
        base, parents = pair[1]._tree
        name = self.chance.choice(["keep_path", "keep_branch", "rollback"])
        self.call(pair, name, base, *([] if name == "rollback" else [self.path_of(parents)]))

    def path_of(self, parents: Sequence[int]) -> list[int]:
        path: list[int] = []
        while below := [n for n, up in enumerate(parents) if up == (path[-1] if path else -1)]:
            if self.chance.random() < 0.2:
                break
            path.append(self.chance.choice(below))
        return path

    def call(self, pair: tuple[PagedCache, PagedCache], name: str, *arguments: object) -> None:
        self.happened[name] += 1
        for cache in pair:
            getattr(cache, name)(*arguments)
        assert pair[0].length == pair[1].length

    def feed(self) -> None:
        """A forward of some of the sessions, each with a chain, a tree, or more of its tree."""
        fed = [
            (pair, self.tokens_for(pair[1])) for pair in self.sessions if self.chance.random() < 0.8
        ]
        ours, theirs = (
            engine.forward([Segment(pair[side], **kwargs) for pair, kwargs in fed if kwargs])
            for side, engine in enumerate(self.engines)
        )
        for one, other in zip(ours, theirs, strict=True):
            assert one.shape == other.shape
            self.happened["rows"] += len(one)
            if len(one):
                assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())

    def tokens_for(self, cache: PagedCache) -> dict[str, Any]:
        count = self.chance.choice([1, 1, 1, 2, 5, 17])
        if cache.length + count > cache.reserve:
            return {}
        kwargs: dict[str, Any] = {"logits_from": self.chance.randint(0, count // 2)}
        kwargs["token_ids"] = [self.chance.randrange(3, 320) for _ in range(count)]
        if cache._tree is not None or self.chance.random() < 0.4:
            base, known = cache._tree or (cache.length, ())
            nodes = range(len(known), len(known) + count)
            kwargs["parents"] = [self.chance.randrange(-1, node) for node in nodes]
            kwargs["base"] = base
            self.happened["tree"] += 1
        return kwargs


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_any_run_of_segments_trees_and_rollbacks_gives_the_logits_of_one_process(both, seed):
    pairs = Pairs(both, seed)
    pairs.play(120)
    assert pairs.happened["rows"] > 200
    moves = {"fork", "free", "rollback", "keep_path", "keep_branch", "turn", "copy", "grow"}
    assert moves < set(pairs.happened)
    assert [engine.kv_tokens_used for engine in both] == [0, 0]


def test_a_refused_segment_leaves_the_ranks_in_step(both):
    leader, single = both
    pairs = [(engine, engine.new_cache(32)) for engine in both]
    text = random_text(9)
    rows = []
    for engine, cache in pairs:
        for bad in ([320], [], [5] * 33):
            with pytest.raises(ValueError, match="token"):
                engine.forward([Segment(cache, bad)])
        with pytest.raises(ValueError, match="roll back"):
            cache.rollback(3)
        rows += engine.forward([Segment(cache, text)])
        cache.free()
        cache.free()
    torch.testing.assert_close(rows[0], rows[1], atol=1e-4, rtol=1e-5)
    assert leader.forward([]) == []
    assert leader.fingerprint == single.fingerprint


def test_a_cache_without_room_is_refused_and_nobody_is_told(both):
    leader, single = both
    assert leader.kv_tokens_capacity == CAPACITY
    with pytest.raises(Overloaded):
        leader.new_cache(CAPACITY + 1)
    caches = [engine.new_cache(CAPACITY) for engine in both]
    text = random_text(5)
    rows = [
        engine.forward([Segment(cache, text)])[0]
        for engine, cache in zip(both, caches, strict=True)
    ]
    torch.testing.assert_close(rows[0], rows[1], atol=1e-4, rtol=1e-5)
    assert leader.kv_tokens_used == single.kv_tokens_used == CAPACITY
    for cache in caches:
        cache.free()


def test_each_rank_keeps_the_kv_of_its_own_heads(both):
    caches = [engine.new_cache(8) for engine in both]
    for engine, cache in zip(both, caches, strict=True):
        engine.forward([Segment(cache, [7])])
    ours, whole = (cache.bytes_per_token for cache in caches)
    assert 2 * ours == whole
    for cache in caches:
        cache.free()


# --- what is told -----------------------------------------------------------------


def test_the_other_rank_holds_what_was_done_to_the_caches():
    first, other = engine_of("llama"), engine_of("qwen2")
    journal, mirror = mirroring.Journal(), mirroring.Mirror(other)
    cache, gone = (mirroring.new_mirrored(journal, first.budget, 32) for _ in range(2))
    path = [0, 1]
    segments = [Segment(cache, [5, 6, 7, 8], parents=[-1, 0, 0, 1])]
    mirror.follow(journal.told_with(segments))
    first.forward(segments)
    cache.keep_path(0, path)
    branch = cache.fork(16)
    path.clear()  # What was told stays told.
    gone.free()
    gone.free()
    segments = [Segment(cache, [9]), Segment(branch, [3, 4])]
    mirror.follow(journal.told_with(segments))
    first.forward(segments)
    assert len(mirror) == 2
    assert (
        [one.length for one in mirror._caches.values()] == [3, 4] == [cache.length, branch.length]
    )
    assert other.kv_tokens_used == first.kv_tokens_used == 48
    cache.free()
    branch.free()
    mirror.follow(journal.told_with([]))
    assert len(mirror) == other.kv_tokens_used == 0


def test_a_rank_that_holds_something_else_computes_nothing():
    first, other = engine_of("llama"), engine_of("qwen2")
    journal, mirror = mirroring.Journal(), mirroring.Mirror(other)
    cache = mirroring.new_mirrored(journal, first.budget, 8)
    segments = [Segment(cache, [5, 6])]
    mirror.follow(journal.told_with(segments))
    first.forward(segments)
    cache._length = 1  # As a change would that nobody is told of.
    with pytest.raises(RuntimeError, match="not those of rank 0"):
        mirror.follow(journal.told_with([Segment(cache, [7])]))
    cache.free()
    mirror.follow(journal.told_with([]))


def test_every_change_of_a_cache_is_told():
    only_read = {"tree_at", "check_append", "check_layers", "check_prefix"}
    parts_of_a_forward = {"reach", "commit"}
    methods = {name for name, _ in inspect.getmembers(PagedCache, inspect.isfunction)}
    changing = {name for name in methods if name[0] != "_"} - only_read - parts_of_a_forward
    assert changing == {
        name for name in vars(mirroring.MirroredCache) if name in methods and name[0] != "_"
    }


def test_a_method_that_uses_another_is_told_once(monkeypatch):
    def start_again(cache: PagedCache) -> None:
        cache.rollback(0)

    journal, calls = mirroring.Journal(), []
    monkeypatch.setattr(journal, "note", calls.append)
    cache = mirroring.new_mirrored(journal, PagedBudget(8), 8)
    mirroring._mirrored(start_again)(cache)
    cache.rollback(0)
    assert [call.name for call in calls] == ["new_cache", "start_again", "rollback"]


def test_what_gives_way_to_a_cache_is_told_before_it(monkeypatch):
    journal, calls = mirroring.Journal(), []
    budget = PagedBudget(8)
    old = mirroring.new_mirrored(journal, budget, 8).park()
    budget.reclaim = lambda tokens: old.free()
    monkeypatch.setattr(journal, "note", calls.append)
    new = mirroring.new_mirrored(journal, budget, 8)
    assert [call.name for call in calls] == ["free", "new_cache"]
    spare = new.park()
    other = mirroring.new_mirrored(journal, budget, 2)
    budget.reclaim = lambda tokens: spare.free()
    calls.clear()
    other.grow(8)
    assert [call.name for call in calls] == ["free", "grow"]


def test_a_cache_that_other_ranks_do_not_have_cannot_be_fed():
    journal, plain = mirroring.Journal(), PagedCache(PagedBudget(8), 8)
    with pytest.raises(TypeError, match="do not have"):
        journal.told_with([Segment(plain, [1])])


class LostRanks:
    """Ranks of which nobody hears; to give up is an exception here."""

    def __init__(self, room: int = 64) -> None:
        self.told: list[bytes] = []
        self._room = room

    def read(self, folder: Path, spec: ModelSpec) -> Any:
        return read_folder(folder, spec)

    def serve(self) -> list[int]:
        return [self._room]

    def tell(self, message: bytes) -> None:
        self.told.append(message)

    def give_up(self, error: BaseException) -> None:
        raise SystemExit(type(error).__name__)


def test_a_forward_that_fails_here_is_the_end_and_one_that_does_not_fit_is_not(monkeypatch):
    engine = NativeEngine.from_model(
        engine_of("llama").model, spec=ModelSpec("m", kv_capacity_tokens=64)
    )
    others = LostRanks()
    leader = Leader(engine, others, 64)
    cache = leader.new_cache(16)
    with pytest.raises(ValueError, match="token ids"):
        leader.forward([Segment(cache, [999])])
    assert others.told == []

    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine, "_run", no_memory)
    with pytest.raises(SystemExit, match="OutOfMemoryError"):
        leader.forward([Segment(cache, [9])])
    assert len(others.told) == 1


# --- what fits --------------------------------------------------------------------


@pytest.mark.parametrize(("room", "expected"), [(64, 64), (CAPACITY + 1, CAPACITY)])
def test_the_rank_with_the_least_room_says_how_many_tokens_fit(tmp_path, room, expected):
    leader = Leader.load(spec_of(tiny_model_folder(tmp_path)), LostRanks(room))
    assert leader.kv_tokens_capacity == expected


def test_ranks_share_the_memory_of_their_machine(monkeypatch):
    monkeypatch.setattr(engine_room, "free_memory", lambda: 1000)
    assert (free_bytes("cpu"), free_bytes("cpu", 4)) == (1000, 250)


@pytest.mark.parametrize(("ranks_of_it", "packed"), [(None, True), (2, False)])
def test_a_part_of_a_model_is_not_packed(monkeypatch, ranks_of_it, packed):
    were_packed: list[Any] = []
    monkeypatch.setattr(preparing, "packing_of", lambda model: PackedLinear)
    monkeypatch.setattr(preparing, "pack", lambda model, kind: were_packed.append(model))
    model = tiny_model("llama")
    model._tp_size = ranks_of_it
    NativeEngine.from_model(model, check=False)
    assert bool(were_packed) is packed


# --- what cannot be split ---------------------------------------------------------


def test_a_model_without_a_plan_is_refused(tmp_path):
    folder = tiny_model_folder(tmp_path, "gpt2")
    with pytest.raises(StartError, match=r"tensor-parallel plan for gpt2$"):
        shards.check_plan(folder, "m", 2)


@pytest.mark.parametrize(("size", "named"), [(3, "4, the num_attention"), (4, "2, the num_key")])
def test_heads_that_cannot_be_divided_are_named(tmp_path, size, named):
    folder = tiny_model_folder(tmp_path, "llama")
    shards.check_plan(folder, "m", 2)
    with pytest.raises(StartError, match=f"{size} does not divide {named}"):
        shards.check_plan(folder, "m", size)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are such devices here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "tpu"])
def test_a_device_that_is_not_there_is_refused(device):
    shards.check_device("cpu", 2)
    with pytest.raises(StartError, match=f"cuda or cpu, not {device}"):
        shards.check_device(device, 2)


@pytest.mark.parametrize(
    ("cpus", "expected"), [((), [(), ()]), ((4,), [(4,), (4,)]), ((1, 2, 5), [(1,), (2, 5)])]
)
def test_cores_are_divided_among_the_ranks(cpus, expected):
    assert [shards.divided(cpus, rank, 2) for rank in range(2)] == expected


# --- the end ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "status", "words"),
    [("nonsense", 1, [LastWords("AttributeError")]), (None, 0, [])],
    ids=["it fails", "rank 0 is gone"],
)
def test_a_rank_that_fails_says_why_and_one_that_is_left_says_nothing(told, status, words):
    ours, theirs = Pipe()
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(follow(theirs, 1)))
    thread.start()
    assert ours.recv() is None
    if told is not None:
        ours.send(told)
        assert [ours.recv()] == words
    ours.close()
    thread.join(30)
    assert statuses == [status]


LAST_WORDS = pickle.dumps(LastWords("no memory")).hex()
TELLS = f"bytes.fromhex('{LAST_WORDS}')"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("sys.exit(3)", "ended with status 3"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        (f"Connection(int(sys.argv[1])).send_bytes({TELLS})", "no memory"),
    ],
)
def test_of_a_rank_that_ends_it_is_known_how(monkeypatch, program, reason):
    imports = "import os, sys; from multiprocessing.connection import Connection"
    command = [sys.executable, "-c", f"{imports}; {program}"]
    monkeypatch.setattr(ranks, "_command", lambda link, rank: [*command, str(link)])
    follower = ranks.Follower(1)
    assert follower.listen() == reason
    follower.stop(0)
