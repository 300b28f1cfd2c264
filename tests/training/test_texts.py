"""Shards, series and the head's vocabulary."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from services.training import texts as stored
from services.training.head.vocabulary import frequent
from services.training.reporting import Stopped
from services.training.series import Series
from services.training.work import WorkFolder


def text(number, laws=3, ids=None):
    rng = np.random.default_rng(number)
    law_ids = np.stack([rng.permutation(50)[:4] for _ in range(laws)]).astype(np.int32)
    logs = np.full((laws, 4), np.log(0.2), dtype=np.float16)
    tokens, prefixes = rng.integers(0, 50, laws + 2), np.arange(2, laws + 2, dtype=np.int32)
    given = law_ids if ids is None else ids
    return stored.Text(number, tokens.astype(np.int32), prefixes, given, logs)


def test_a_shard_gives_its_texts_back(tmp_path):
    written = [text(4, 3), text(1, 1), text(9, 7)]
    stored.save_shard(tmp_path / "texts-00000.safetensors", written)
    read = stored.load_shard(tmp_path / "texts-00000.safetensors")
    for one, other in zip(written, read, strict=True):
        assert one.number == other.number
        for name in ("token_ids", "prefixes", "law_ids", "law_logs"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_shard_is_written_when_enough_laws_are_together(tmp_path):
    writer = stored.ShardWriter(tmp_path, 10)
    for number in range(5):
        writer.add([text(number, 4)])
    assert len(stored.shards(tmp_path)) == 1
    writer.flush()
    assert [one.number for one in stored.load_texts(tmp_path)] == list(range(5))
    again = stored.ShardWriter(tmp_path, 10)
    again.add([text(5, 10)])
    assert [one.number for one in stored.load_texts(tmp_path)] == list(range(6))


class FakeWriter:
    """Writes texts of 1 to 5 laws, a law of each per step, so that they end out of order."""

    def __init__(self, side_by_side, long=()):
        self._batch, self._long = side_by_side, long
        self.asked = []
        self.steps = 0

    def write(self, numbers):
        pages = {}
        while True:
            for number in itertools.islice(numbers, self._batch - len(pages)):
                pages[number] = 1000 if number in self._long else 1 + (number * 7) % 5
                self.asked.append(number)
            if not pages:
                return
            pages = {number: left - 1 for number, left in pages.items()}
            done = [number for number, left in pages.items() if not left]
            drawn = len(pages)
            pages = {number: left for number, left in pages.items() if left}
            self.steps += 1
            yield [text(number, 1 + (number * 7) % 5) for number in done], drawn


def run(folder, side_by_side, goal, allowed=lambda one: True, stop=None):
    work = WorkFolder(folder)
    work.texts.mkdir(parents=True, exist_ok=True)
    series, writer = Series(work, goal, allowed), FakeWriter(side_by_side)
    steps = series.write(writer)
    try:
        for laws in steps:
            if stop is not None and laws >= stop:
                raise Stopped("by a test")
    finally:
        steps.close()
    return [one.number for one in series.texts()], writer.asked


@pytest.mark.parametrize("side_by_side", [1, 3, 8])
def test_the_series_is_the_shortest_beginning_that_holds_enough(tmp_path, side_by_side):
    numbers, _ = run(tmp_path, side_by_side, goal=40)
    assert numbers == list(range(len(numbers)))
    laws = [1 + (number * 7) % 5 for number in numbers]
    assert sum(laws) >= 40 > sum(laws[:-1])


def test_a_series_that_was_stopped_writes_only_what_is_missing(tmp_path):
    whole, _ = run(tmp_path / "whole", 8, goal=100)
    for stop in (20, 50, 90):
        with pytest.raises(Stopped):
            run(tmp_path / "cut", 8, goal=100, stop=stop)
    kept = {one.number for one in stored.load_texts(tmp_path / "cut" / "texts")}
    numbers, asked = run(tmp_path / "cut", 8, goal=100)
    assert numbers == whole
    assert kept
    assert not kept & set(asked)


def test_texts_that_are_not_allowed_are_made_up_for(tmp_path):
    numbers, _ = run(tmp_path, 4, goal=40, allowed=lambda one: one.number % 3 != 0)
    assert 0 not in numbers
    assert 3 not in numbers
    assert sum(1 + (number * 7) % 5 for number in numbers) >= 40
    # They stay on disk, and are left out again by the next run.
    again, asked = run(tmp_path, 4, goal=40, allowed=lambda one: one.number % 3 != 0)
    assert again == numbers
    assert not asked


def test_not_many_more_texts_are_written_than_needed(tmp_path):
    numbers, asked = run(tmp_path, 8, goal=200)
    assert len(asked) <= len(numbers) + 8


def test_it_does_not_wait_for_texts_that_are_not_needed(tmp_path):
    work = WorkFolder(tmp_path)
    work.texts.mkdir()
    series, writer = Series(work, 20, lambda one: True), FakeWriter(8, long=(9,))
    assert list(series.write(writer))
    assert 9 in writer.asked
    assert writer.steps < 20
    assert [one.number for one in series.texts()] == list(range(8))


def test_texts_reach_the_disk_before_a_shard_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("services.training.series._FLUSH_S", 0.0)
    work = WorkFolder(tmp_path)
    work.texts.mkdir()
    steps = Series(work, 100, lambda one: True).write(FakeWriter(2))
    for laws in steps:
        if laws > 30:
            assert sum(1 for _ in stored.load_texts(work.texts)) > 5
            break
    steps.close()


def test_the_time_of_writing_is_added_up_over_runs(tmp_path):
    work = WorkFolder(tmp_path)
    work.texts.mkdir()
    work.seconds = 100.0
    run(tmp_path, 4, goal=20)
    assert 100.0 <= WorkFolder(tmp_path).seconds < 110.0


def ids(*rows):
    return np.array(rows, dtype=np.int32)


def test_the_head_takes_the_tokens_of_most_mass_and_the_ends_always():
    texts = [text(0, 2, ids([5, 6, 7, 8], [5, 6, 7, 9])), text(1, 1, ids([5, 6, 10, 11]))]
    head = frequent(texts, 50, 4, always=(49,))
    assert head.ids.tolist() == [5, 6, 7, 49]
    assert head.ids.dtype is torch.int64
    # 0.6 + 0.6 + 0.4 of three laws.
    assert head.mass == pytest.approx(1.6 / 3, abs=1e-3)


def test_the_lower_id_wins_a_tie_and_fills_up_a_head_of_unseen_tokens():
    texts = [text(0, 1, ids([30, 20, 10, 40]))]
    assert frequent(texts, 50, 2, always=()).ids.tolist() == [10, 20]
    assert frequent(texts, 50, 6, always=()).ids.tolist() == [0, 1, 10, 20, 30, 40]
