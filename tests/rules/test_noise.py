import struct
from hashlib import blake2b

import numpy as np
import pytest
import torch

from services.engine import noise
from tests.rules.chance import ALARM, p_value

torch.set_num_threads(1)
MASK = 0xFFFFFFFF


def numpy_words(seed, position, ids):
    """The documented layout, written a second time with numpy's unsigned integers."""
    digest = blake2b(struct.pack("<QBQ", seed, 5, position), digest_size=8).digest()
    low, high = (np.uint32(half) for half in struct.unpack("<II", digest))
    words = np.asarray(ids, dtype=np.uint32)
    for half in (low, high):
        words = words ^ half
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        words = words ^ (words >> np.uint32(16))
    return words


def numpy_exponentials(seed, position, ids):
    shares = (numpy_words(seed, position, ids).astype(np.float64) + 0.5) * 2.0**-32
    return (-np.log1p(-shares)).astype(np.float32)


def uniforms(seed, position, size):
    return 1.0 - np.exp(-noise.exponentials(seed, position, size).double().numpy())


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**63, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 1, 4095])
def test_torch_and_numpy_give_the_same_exponentials(seed, position):
    ours = noise.exponentials(seed, position, 50_000).numpy()
    np.testing.assert_array_equal(ours, numpy_exponentials(seed, position, np.arange(50_000)))


def test_the_noise_of_known_keys_never_changes():
    assert numpy_words(0, 0, [0, 1, 2]).tolist() == GOLDEN_WORDS
    np.testing.assert_array_equal(
        noise.exponentials(0, 0, 3).numpy(),
        (-np.log1p(-(np.array(GOLDEN_WORDS) + 0.5) / 2.0**32)).astype(np.float32),
    )


GOLDEN_WORDS = [4048155620, 2215297855, 1213234728]


def test_a_reduced_vocabulary_gets_the_noise_of_the_whole_one():
    whole = noise.exponentials(99, 17, 4096)
    ids = torch.tensor([4095, 3, 3, 0, 2048])
    assert torch.equal(noise.exponentials(99, 17, ids), whole[ids])


def test_rows_in_a_batch_equal_rows_alone():
    places = [(1, 0), (1, 1), (2, 0), (2**64 - 1, 1000)]
    batch = noise.exponential_rows(places, torch.arange(333))
    alone = torch.stack([noise.exponentials(seed, position, 333) for seed, position in places])
    assert torch.equal(batch, alone)


def test_every_row_may_ask_for_its_own_ids():
    ids = torch.tensor([[5, 1], [7, 300]])
    rows = noise.exponential_rows([(1, 0), (1, 9)], ids)
    assert torch.equal(rows[1], noise.exponentials(1, 9, torch.tensor([7, 300])))


@pytest.mark.parametrize("ids", [np.arange(70_000), np.array([2**31 - 1, 65_536, 5, 5])])
def test_the_words_by_numpy_and_by_torch_are_the_same(ids):
    for seed, position in [(0, 0), (2**64 - 1, 4095), (12345, 7)]:
        ours = noise.words_of(seed, position, noise.fold(ids))
        np.testing.assert_array_equal(ours, numpy_words(seed, position, ids))
        theirs = noise.word_rows([(seed, position)], torch.from_numpy(ids))[0]
        np.testing.assert_array_equal(ours, theirs.numpy().view(np.uint32))


def test_exponentials_are_positive_and_finite_at_both_ends():
    words = np.array([0, 1, MASK, MASK - 1, 2**31 - 1, 2**31], dtype=np.uint32)
    expected = -np.log1p(-(words.astype(np.float64) + 0.5) / 2.0**32)
    for values in (
        noise.to_exponential(torch.from_numpy(words.view(np.int32))).numpy(),
        noise.exponential_of(words),
    ):
        assert np.isfinite(values).all()
        assert (values > 0).all()
        np.testing.assert_allclose(values, expected, rtol=1e-15)


def key_halves(word):
    """The key halves, as derive_key gives them, of a 64-bit word."""
    return struct.unpack("<ii", struct.pack("<Q", word))


def test_a_uniform_is_the_first_53_bits_of_its_key_and_never_1(monkeypatch):
    low, high = noise.derive_key(3, noise.Stream.ACCEPT, 1, 2, 3, 4, 5)
    word = ((high & MASK) << 32) | (low & MASK)
    assert noise.uniform(3, noise.Stream.ACCEPT, 1, 2, 3, 4, 5) == (word >> 11) / 2**53
    for word, value in [(2**64 - 1, 1 - 2.0**-53), (0, 0.0), (2**11, 2.0**-53), (2**63, 0.5)]:
        monkeypatch.setattr(noise, "derive_key", lambda *key, word=word: key_halves(word))
        assert noise.uniform(0, noise.Stream.BONUS, 1) == value


def test_uniforms_of_known_keys_never_change():
    digest = blake2b(struct.pack("<QB5Q", 2**64 - 1, 2, 1, 2, 3, 4, 2**40), digest_size=8).digest()
    expected = (int.from_bytes(digest, "little") >> 11) / 2**53
    assert noise.uniform(-1, noise.Stream.ACCEPT, 1, 2, 3, 4, 2**40) == expected
    assert noise.uniform(7, noise.Stream.RESIDUAL, 1, 2, 3, 4, 5) == GOLDEN_UNIFORM


GOLDEN_UNIFORM = 0.598854888684422


def test_every_number_passes_through_derive_key(monkeypatch):
    seen = []

    def audited(seed, stream, *counters, derive=noise.derive_key):
        seen.append((seed, stream, counters))
        return derive(seed, stream, *counters)

    monkeypatch.setattr(noise, "derive_key", audited)
    noise.uniform(1, noise.Stream.DRAFT, 1, 2, 3, 4)
    noise.exponential_rows([(2, 8), (3, 9)], torch.arange(4))
    noise.words_of(4, 10, noise.fold(np.arange(4)))
    assert seen == [
        (1, noise.Stream.DRAFT, (1, 2, 3, 4)),
        (2, noise.Stream.GUMBEL, (8,)),
        (3, noise.Stream.GUMBEL, (9,)),
        (4, noise.Stream.GUMBEL, (10,)),
    ]


def test_uniforms_of_neighbouring_counters_and_of_two_streams_are_independent():
    streams = (noise.Stream.ACCEPT, noise.Stream.RESIDUAL)
    keys = [(i // 8, i % 8, 0) for i in range(40_000)]
    drawn = np.array([[noise.uniform(5, one, 1, 1, *key) for key in keys] for one in streams])
    cells = (drawn * 8).astype(int)
    flat = torch.full((64,), 1 / 64)
    for one, other in [(cells[0], cells[1]), (cells[0][1:], cells[0][:-1])]:
        assert p_value(np.bincount(one * 8 + other, minlength=64), flat) > ALARM


def test_streams_positions_and_seeds_have_keys_of_their_own():
    keys = {
        noise.derive_key(seed, stream, *counters)
        for seed in range(5)
        for stream in noise.Stream
        for counters in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**40,)]
    }
    assert len(keys) == 5 * 5 * 7


def test_uniforms_are_uniform():
    values = np.concatenate([uniforms(4, position, 10_000) for position in range(20)])
    counts, _ = np.histogram(values, bins=100, range=(0, 1))
    expected = len(values) / 100
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 50 < chi_square < 160  # 99 degrees of freedom: 99 ± 14


def test_neighbouring_positions_tokens_and_seeds_are_uncorrelated():
    size = 100_000
    base = uniforms(11, 5, size)
    limit = 5 / np.sqrt(size)
    others = [uniforms(11, 6, size), uniforms(12, 5, size), uniforms(10, 4, size), np.roll(base, 1)]
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < limit


def test_one_token_over_many_positions_is_uniform_and_uncorrelated():
    places = [(3, position) for position in range(20_000)]
    values = noise.exponential_rows(places, torch.tensor([0, 1, 31])).numpy()
    shares = 1.0 - np.exp(-values.astype(np.float64))
    for column in shares.T:
        counts, _ = np.histogram(column, bins=20, range=(0, 1))
        assert ((counts - 1000) ** 2 / 1000).sum() < 50  # 19 degrees of freedom
        assert abs(np.corrcoef(column[1:], column[:-1])[0, 1]) < 5 / np.sqrt(20_000)
    assert np.abs(np.corrcoef(shares.T) - np.eye(3)).max() < 5 / np.sqrt(20_000)


def test_bits_of_words_flip_half_of_the_time_when_the_id_changes_by_one():
    words = numpy_words(21, 0, np.arange(65_536))
    flips = np.bitwise_count(words[1:] ^ words[:-1])
    assert abs(flips.mean() - 16) < 0.1
