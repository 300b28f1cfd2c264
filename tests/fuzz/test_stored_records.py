"""What Redis holds may be anything: it is read as it is, or refused by name."""

import json
import logging
from contextlib import suppress

import fakeredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.session.ports import StoredRound
from orchestrator.session.round_records import load_round
from orchestrator.session.served_model import parse_defaults
from orchestrator.session.spec import SessionSpec
from orchestrator.session.spec_record import dump_spec, load_spec
from orchestrator.session.totals import SpecTotals
from orchestrator.store import codec
from services.contract.errors import DataLoss, PacelineError, StoreError
from services.contract.types import Progress, ResolvedSampling, Role, VerifyMode, WorkerDescription
from services.drafter.methods.ngram import archive
from services.runtime import registry
from services.runtime.presence import keys_of

DEEP = "[" * 100_000
numbers = st.sampled_from([-1, 0, 1, 2**31, 2**64, 10**30, 1.5, float("nan"), float("inf")])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=9)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
SPEC = SessionSpec(
    session="s", model="m", prompt=(1, 2), seed=7, mode=VerifyMode.COUPLED, digest="d",
    sampling=ResolvedSampling(logit_bias=((3, 0.5),), stop_token_ids=(4,)),
    stop=("x",), method=("model",),
)  # fmt: skip


def changed(document, path, value):
    """The JSON document with another value at one place."""
    document = json.loads(json.dumps(document))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return document


def paths(document, above=()):
    """Every place of a JSON document."""
    if isinstance(document, dict):
        for name, inner in document.items():
            yield (*above, name)
            yield from paths(inner, (*above, name))


def damaged(document):
    """The document with any value at any place, or its text with bytes cut out or changed."""
    text = json.dumps(document).encode()
    other = st.builds(changed, st.just(document), st.sampled_from(list(paths(document))), values)
    cut = st.integers(0, len(text)).map(lambda end: text[:end])
    flipped = st.builds(
        lambda at, byte: text[:at] + bytes([byte]) + text[at + 1 :],
        st.integers(0, len(text) - 1),
        st.integers(0, 255),
    )
    deep = st.just(DEEP.encode())
    return other.map(lambda one: json.dumps(one).encode()) | cut | flipped | deep


STORED = json.loads(dump_spec(SPEC))


def test_a_stored_spec_comes_back_as_it_was():
    assert load_spec(dump_spec(SPEC), SPEC.prompt) == SPEC


@given(damaged(STORED))
def test_a_damaged_spec_is_a_spec_or_a_loss(record):
    # A damaged version may be a newer one.
    with suppress(DataLoss, StoreError):
        spec = load_spec(record, (1, 2))
        # What was read can be written: every field has its type.
        assert load_spec(dump_spec(spec), (1, 2)) == spec


def test_the_loss_of_a_spec_quotes_nothing_of_it():
    with pytest.raises(DataLoss) as loss:
        load_spec(json.dumps({**STORED, "seed": "a secret"}).encode(), ())
    assert "secret" not in str(loss.value)


META = {
    b"version": b"1", b"status": b"active", b"term": b"3", b"owner": b"o1",
    b"resolved": dump_spec(SPEC), b"digest": b"d", b"target_fingerprint": b"f",
    b"prompt": codec.pack((1, 2)), b"prompt_len": b"2", b"committed_len": b"1", b"seed": b"7",
    b"ephemeral": b"0", b"finish_reason": b"stop", b"matched_stop": b"token:4",
    b"created_ms": b"1", b"lease_until_ms": b"2",
}  # fmt: skip
# What the store's writer makes a StoreError of.
MALFORMED = LookupError, ValueError, TypeError
junk = st.binary(max_size=9) | st.sampled_from([b"9" * 5000, b"nan", b"-1", b"token:", b"\xff"])


def flat(fields):
    return [part for pair in fields.items() for part in pair]


@given(st.sampled_from(list(META)), junk | st.none(), junk)
def test_a_damaged_session_is_a_session_or_malformed(name, value, tokens):
    fields = dict(META)
    if value is None:
        del fields[name]
    else:
        fields[name] = value
    with suppress(*MALFORMED, StoreError):
        codec.decode_session([b"ok", flat(fields), tokens])
    with suppress(*MALFORMED, StoreError):
        codec.decode_outline([b"ok", flat(fields), 0])


def test_the_session_that_is_damaged_was_one():
    assert codec.decode_session([b"ok", flat(META), codec.pack((5,))]).committed == (5,)
    assert codec.decode_outline([b"ok", flat(META), 4]).size == 4


ROUND = {b"term": b"1", b"round": b"1", b"base_len": b"0", b"tokens": b"2", b"record": b"{}"}


@given(st.sampled_from(list(ROUND)), junk)
def test_a_damaged_round_is_a_round_or_malformed(name, value):
    with suppress(*MALFORMED):
        codec.decode_rounds([b"ok", [(b"1-1", flat({**ROUND, name: value}))]])


@given(damaged({"epoch": 1, "draft_tokens": 4, "accepted_tokens": 2, "verify_ms": 1.0}))
def test_the_figures_of_a_damaged_round_are_left_out(record):
    totals = SpecTotals()
    totals.add(load_round(StoredRound(term=1, round=1, base_len=0, tokens=2, record=record)).record)
    assert totals.target_steps == 1
    assert len(totals.histogram) < 1 << 17


@given(damaged({"temperature": 0.5, "top_k": 4, "eos_token_id": [1], "bad_words_ids": None}))
def test_a_damaged_generation_config_is_neutral_or_usable(config):
    assert 0 <= parse_defaults(config.decode(errors="replace")).top_p <= 1


WORKER = WorkerDescription("w1", Role.VERIFIER, methods=("model",), vocab_size=9)
ENTRY = json.loads(
    registry._encode(registry.RegisteredWorker(WORKER, "10.0.0.1:7000", Progress(steps=4)))
)


def entry(document):
    return b"0" * 16 + json.dumps(document).encode()


def test_a_registry_entry_comes_back_as_it_was():
    known = registry._decode(entry(ENTRY)[16:])
    assert known == registry.RegisteredWorker(WORKER, "10.0.0.1:7000", Progress(steps=4))


@given(damaged(ENTRY))
def test_a_damaged_registry_entry_is_an_entry_or_skipped(data):
    worker = registry._decode(data)
    if worker is not None:
        # It can be sorted among others, and connected to.
        assert f"{worker.description.role.value}/{worker.description.worker_id}"
        host, _, port = worker.address.rpartition(":")
        assert host
        assert port.isdigit()
        assert registry._decode(registry._encode(worker).encode()) == worker


@pytest.mark.parametrize(
    "address",
    ["", "nowhere", "unix:/run/x", "dns://8.8.8.8/evil:1", "h:1\nforged", "h:", ":1", "a b:1", 5],
)
async def test_a_hostile_registry_entry_is_skipped_with_a_warning(address, caplog):
    redis = fakeredis.FakeAsyncRedis()
    good = registry.Registration(
        "redis://none", WORKER, "10.0.0.1:7000", client=redis, prefix="p:", ttl_s=60
    )
    await good.start()
    await redis.hset(
        keys_of("p:", registry.WORKERS)[0], "verifier/evil", entry({**ENTRY, "address": address})
    )
    known = registry.WorkerRegistry("redis://none", client=redis, prefix="p:")
    with caplog.at_level(logging.WARNING):
        workers = await known.list(Role.VERIFIER)
    assert [worker.address for worker in workers] == ["10.0.0.1:7000"]
    assert "cannot be read" in caplog.text
    assert "evil" not in caplog.text
    await good.stop()


@given(st.binary(max_size=40) | st.text(max_size=9))
def test_a_damaged_phrase_is_a_row_of_tokens_or_nothing(record):
    tokens = archive._decode(record, 4)
    assert len(tokens) <= 4
    assert all(0 <= token < 2**32 for token in tokens)


@pytest.mark.parametrize("path", list(paths(STORED)))
def test_no_other_type_is_taken_for_a_field_of_a_spec(path):
    for value in ([[[]]], float("nan"), 10**40):
        with suppress(PacelineError):
            spec = load_spec(json.dumps(changed(STORED, path, value)).encode(), ())
            pytest.fail(f"{path} = {value!r} gave {spec}")
