"""The n-gram file: what is written is read, and what is broken or foreign is refused."""

import hashlib
import json
import struct

import pytest

from services.contract.errors import StartError
from services.engine.ngram_file import (
    FIRSTS,
    Laws,
    NgramFile,
    code_of,
    extend_key,
    load_ngrams,
    save_ngrams,
    support_of,
)

VOCAB = 10


def made(**changes):
    key = extend_key(0, 3)
    laws = Laws((key,), bytes([support_of(4)]), (0, 2), (5, 6), bytes([code_of(0.5), 100]))
    values = {
        "target": "t",
        "target_fingerprint": "w",
        "tokenizer_fingerprint": "f",
        "vocab_size": VOCAB,
        "first_ids": [1] * VOCAB * FIRSTS,
        "first_codes": bytes([200]) * VOCAB * FIRSTS,
        "laws": (laws,),
        "weights": {"greedy.own1": 1.5},
        "card": {"laws": 3},
    }
    return NgramFile(**{**values, **changes})


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "n.bin"
    save_ngrams(path, made())
    file = load_ngrams(path)
    assert (file.target, file.tokenizer_fingerprint, file.vocab_size) == ("t", "f", VOCAB)
    assert list(file.first_ids) == [1] * VOCAB * FIRSTS
    assert (file.weights, file.card) == ({"greedy.own1": 1.5}, {"laws": 3})
    (laws,) = file.laws
    law = laws.find(extend_key(0, 3))
    assert list(laws.ids[laws.starts[law] : laws.starts[law + 1]]) == [5, 6]
    assert laws.find(extend_key(0, 4)) == -1


def header(change):
    """A change of the header, with a checksum that fits."""

    def changed(data):
        (length,) = struct.unpack_from("<I", data, 12)
        known = json.loads(data[16 : 16 + length])
        change(known)
        text = json.dumps(known).encode()
        body = data[:12] + struct.pack("<I", len(text)) + text + data[16 + length : -32]
        return body + hashlib.sha256(body).digest()

    return changed


def body(place, value):
    """Another byte so far from the end, with a checksum that fits."""

    def changed(data):
        parts = bytearray(data[:-32])
        parts[place] = value
        return bytes(parts) + hashlib.sha256(parts).digest()

    return changed


def sets(name, value):
    return header(lambda known: known.update({name: value}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: b"", "no n-gram file"),
        (lambda data: b"#!/bin/sh\n" * 20, "no n-gram file"),
        (lambda data: data[:8] + struct.pack("<I", 9) + data[12:], "version 9"),
        (lambda data: data[:-40], "checksum"),
        (lambda data: data[:100] + b"?" + data[101:], "checksum"),
        (lambda data: data[:12] + struct.pack("<I", 1 << 31) + data[16:], "checksum"),
        (sets("vocab_size", 0), "vocabulary"),
        (sets("vocab_size", True), "vocabulary"),
        (sets("vocab_size", 10**30), "vocabulary"),
        (sets("vocab_size", 11), "not as long"),
        (sets("laws", [[1, 2]] * 5), "orders"),
        (sets("laws", [[1]]), "no counts"),
        (sets("laws", [[-1, 2]]), "no counts"),
        (sets("laws", [[1, 3]]), "not as long"),
        (sets("weights", {"greedy.own1": float("nan")}), "weights"),
        (sets("weights", {"greedy.own1": 1e9}), "weights"),
        (sets("weights", {"greedy.own1": "1"}), "weights"),
        (sets("weights", []), "weights"),
        (sets("tokenizer_fingerprint", 5), "no name"),
        (sets("target", "a\nb"), "no name"),
        (body(-6, 99), "beyond its vocabulary"),
        (body(-7, 3), "lengths"),
    ],
)
def test_a_broken_or_hostile_file_is_refused_in_one_sentence(tmp_path, change, told):
    path = tmp_path / "n.bin"
    save_ngrams(path, made())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(StartError, match=told) as refused:
        load_ngrams(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400 + len(str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StartError, match="No such file"):
        load_ngrams(tmp_path / "none.bin")


def test_keys_out_of_order_are_refused(tmp_path):
    path = tmp_path / "n.bin"
    save_ngrams(path, made(laws=(Laws((7, 7), b"\0\0", (0, 0, 0), (), b""),)))
    with pytest.raises(StartError, match="order"):
        load_ngrams(path)
