"""What a long text costs: as little as can be told before it is tokenized, beside the loop."""

from __future__ import annotations

import asyncio
import json
import threading
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb
from tokenizers import AddedToken, normalizers, pre_tokenizers

from orchestrator.frontdoor import long_requests
from orchestrator.frontdoor.grpc.decoding import incoming, read_request
from orchestrator.frontdoor.long_requests import LARGE, LARGE_AT_ONCE, LONG, RequestThreads
from orchestrator.frontdoor.requests import build_spec, check_counts
from orchestrator.frontdoor.requests import inputs as inputs_module
from orchestrator.session.spec import _in_parts
from orchestrator.text import Tokenizer, TooLong
from orchestrator.text import tokenizer as tokenizer_module
from orchestrator.text.lengths import _COMPOSED, reach_of
from services.contract.errors import InvalidRequest, Overloaded
from tests.orchestrator.request_kit import CONTEXT, MODEL
from tests.orchestrator.text_kit import BACKENDS, EOS, TEXT, bundle, byte_level_backend
from tests.tries import tries
from tests.waiting import until

MIB4 = 4 << 20
CALLING = pb.Message(tool_calls=[pb.ToolCall(name="tell")] * 1025)
PIECES = ("the law ", " ", "\n", "7", "a", "é", "漢字", "🙂", EOS, "\0", "\x14", "ᄀ\u1161\u11a8")
WORDS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=80)


def silent_backend() -> Any:
    """Without tokens for some bytes, as those that were read from GGUF files are."""
    written = json.loads(byte_level_backend().to_str())
    for silent in (chr(256 + 0x14), chr(256)):
        del written["model"]["vocab"][silent]
    return type(byte_level_backend()).from_str(json.dumps(written))


def composing_backend() -> Any:
    """Qwen's: characters are put together before they are taken apart into bytes."""
    backend = byte_level_backend()
    backend.normalizer = normalizers.NFC()
    return backend


def swallowing_backend() -> Any:
    """RoBERTa's: an added token takes all spaces in front of it."""
    backend = byte_level_backend()
    backend.add_tokens([AddedToken("<mask>", lstrip=True)])
    return backend


ALL = {
    **BACKENDS,
    "silent": silent_backend,
    "composing": composing_backend,
    "swallowing": swallowing_backend,
}


@cache
def made_of(name: str) -> tuple[Any, Tokenizer]:
    """A backend and the tokenizer of it."""
    backend = ALL[name]()
    return backend, Tokenizer(bundle(backend))


# --- how long a text is -------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@given(text=WORDS)
def test_ids_are_those_of_the_call_that_also_tells_where_tokens_stand(name: str, text: str) -> None:
    backend, made = made_of(name)
    for special in (True, False):
        ids = made.encode(text, special)
        assert list(ids) == backend.encode(text, add_special_tokens=special).ids


@pytest.mark.parametrize("name", ALL)
@tries(40)
@given(text=WORDS, times=st.sampled_from((1, 1, 60)), short=st.integers(0, 3))
def test_no_text_is_refused_that_has_no_more_tokens_than_are_allowed(
    name: str, text: str, times: int, short: int
) -> None:
    (_, made), text = made_of(name), text * times
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_FIRST_LOOK", 1)
        patch.setattr(tokenizer_module, "_TORN", 40)
        count = len(made.encode(text))
        assert len(made.encode(text, most=count + short)) == count
        if count:
            with pytest.raises(TooLong):
                made.encode(text, most=count - 1)


def test_spaces_that_an_added_token_swallows_are_not_counted() -> None:
    _, made = made_of("swallowing")
    assert len(made.encode(" " * 50_000 + "<mask>", most=2)) == 1


def test_bytes_without_a_token_are_not_counted() -> None:
    _, made = made_of("silent")
    assert len(made.encode("a" + "\x14" * 50_000, most=2)) == 1


def test_composing_takes_no_more_than_eight_bytes_of_nine() -> None:
    apart = together = 0.0
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        one = chr(code)
        nfd = unicodedata.normalize("NFD", one)
        nfc = unicodedata.normalize("NFC", one)
        apart = max(apart, len(one.encode()) / len(nfd.encode()))
        together = max(together, len(nfd.encode()) / len(nfc.encode()))
    assert apart * together <= _COMPOSED


@pytest.mark.parametrize(
    "change",
    [
        lambda backend: setattr(backend, "normalizer", normalizers.NFKC()),
        lambda backend: setattr(backend, "normalizer", normalizers.Strip()),
        lambda backend: setattr(backend, "normalizer", normalizers.Replace("aa", "b")),
        lambda backend: setattr(
            backend,
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
            ),
        ),
        lambda backend: backend.add_tokens([AddedToken("<mask>", rstrip=True)]),
    ],
)
def test_nothing_is_told_where_bytes_may_go_without_a_token(change: Any) -> None:
    backend = byte_level_backend()
    assert reach_of(json.loads(backend.to_str())) is not None
    change(backend)
    assert reach_of(json.loads(backend.to_str())) is None


@pytest.mark.parametrize("text", ["x y " * (MIB4 // 4), "a" * MIB4, " " * MIB4, "\0" * MIB4])
@pytest.mark.parametrize("name", ["byte_level", "swallowing", "composing"])
def test_of_a_text_that_is_far_too_long_little_is_tokenized(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    made, seen = Tokenizer(bundle(ALL[name]())), []
    real = made._encoding
    monkeypatch.setattr(made, "_encoding", lambda part, special: _noted(real, seen, part, special))
    if name == "swallowing":
        # Whatever its end swallows: there is no telling.
        monkeypatch.setattr(made, "_grows", True)
    with pytest.raises(TooLong):
        made.encode(text, most=511)
    assert sum(seen) < 70_000


def _noted(real: Any, seen: list[int], part: str, special: bool) -> Any:
    seen.append(len(part))
    return real(part, special)


# --- conversations ------------------------------------------------------------------


def test_a_template_that_makes_much_of_little_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "MAX_RENDERED_CHARACTERS", 100_000)
    source = "{% for m in messages %}{{ messages[0]['content'] }}{% endfor %}"
    made = Tokenizer(bundle(byte_level_backend(), source))
    said = [pb.Message(role="user", content="a" * 4_000)] * 1024
    request = pb.GenerateRequest(conversation=pb.Conversation(messages=said))
    with pytest.raises(InvalidRequest, match="more than 100000 characters"):
        build_spec(read_request(request), made, MODEL)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"conversation": pb.Conversation(messages=[pb.Message()] * 1025)}, "conversation", "1025"),
        ({"tokens": pb.TokenIds(ids=[5] * CONTEXT)}, "tokens", "64 tokens"),
        ({"sampling": pb.SamplingParams(stop=[""] * 17)}, "sampling.stop", "17"),
        ({"sampling": pb.SamplingParams(stop_token_ids=[1] * 65)}, "sampling.stop_token_ids", "65"),
        (
            {"sampling": pb.SamplingParams(logit_bias=dict.fromkeys(range(1025), 0.0))},
            "sampling.logit_bias",
            "1025",
        ),
        (
            {"sampling": pb.SamplingParams(choice=pb.Choice(options=[""] * 1025))},
            "sampling.choice",
            "1025 options",
        ),
        (
            {"sampling": pb.SamplingParams(allowed_token_ids=[1] * 4097)},
            "sampling.allowed_token_ids",
            "4097 ids",
        ),
        ({"sampling": pb.SamplingParams(bad_words=["a"] * 129)}, "sampling.bad_words", "129 words"),
        (
            {"tokens": pb.TokenIds(ids=[5] * (2**20 + 1)), "truncate_prompt_tokens": 1},
            "tokens",
            "1048577 tokens",
        ),
        ({"conversation": pb.Conversation(tools=[pb.Tool()] * 129)}, "conversation.tools", "129"),
        (
            {"conversation": pb.Conversation(messages=[CALLING])},
            "conversation.messages.tool_calls",
            "1025 calls",
        ),
    ],
)
def test_lists_that_are_too_long_are_refused_before_anything_waits(
    given: dict[str, Any], field: str, value: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_counts(incoming(pb.GenerateRequest(**given)).lengths, MODEL)
    assert refused.value.field.startswith(field)
    assert value in str(refused.value.value)


def test_lists_of_the_longest_lengths_pass() -> None:
    ids = pb.TokenIds(ids=[5] * (CONTEXT - 1))
    check_counts(incoming(pb.GenerateRequest(tokens=ids)).lengths, MODEL)


@example(["tokens", list(range(70_000))])
@given(
    st.tuples(st.just("prompt"), st.text() | st.just(TEXT * 999)).map(list)
    | st.lists(st.lists(st.text(max_size=9), min_size=2, max_size=2)).map(lambda m: ["talk", m])
    | st.lists(st.integers(0, 2**32)).map(lambda ids: ["tokens", ids])
)
def test_a_digest_in_parts_is_of_the_same_bytes_as_one_of_the_whole(content: list[Any]) -> None:
    whole = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert "".join(_in_parts(content)) == whole


# --- beside the loop ----------------------------------------------------------------


class Work:
    """Requests that are read until they are let go."""

    def __init__(self) -> None:
        self.go_on, self.running, self.most, self.done = threading.Event(), 0, 0, 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.go_on.wait(60)
        with self._lock:
            self.running -= 1
            self.done += 1
        return self.done


async def test_two_large_requests_are_read_at_a_time_and_no_short_one_waits_for_them() -> None:
    threads, work = RequestThreads(), Work()
    waiting = [asyncio.ensure_future(threads.read(LARGE, work)) for _ in range(7)]
    await until(lambda: work.running == LARGE_AT_ONCE)
    assert await threads.read(LONG - 1, lambda: "short") == "short"
    assert await threads.read(LONG, lambda: "long") == "long"
    work.go_on.set()
    await asyncio.gather(*waiting)
    assert (work.most, work.done) == (LARGE_AT_ONCE, 7)


async def test_whoever_goes_away_leaves_its_place_and_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_requests, "MOST_WAITING", 3)
    threads, work = RequestThreads(), Work()
    waiting = [asyncio.ensure_future(threads.read(LARGE, work)) for _ in range(3)]
    await until(lambda: work.running == LARGE_AT_ONCE)
    with pytest.raises(Overloaded):
        await threads.read(LARGE, work)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    others = [asyncio.ensure_future(threads.read(LARGE, work)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert work.running == LARGE_AT_ONCE, "those that had begun keep their threads"
    work.go_on.set()
    await asyncio.gather(*others)
    # Nobody waits for the two that were begun and left.
    await until(lambda: work.done == 5)
    assert work.most == LARGE_AT_ONCE


async def test_those_that_wait_are_bounded_by_their_bytes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_requests, "MOST_WAITING_BYTES", 3 * LARGE)
    threads, work = RequestThreads(), Work()
    waiting = [asyncio.ensure_future(threads.read(LARGE, work)) for _ in range(3)]
    await until(lambda: work.running == LARGE_AT_ONCE)
    with pytest.raises(Overloaded):
        await threads.read(LARGE, work)
    work.go_on.set()
    await asyncio.gather(*waiting)
    assert await threads.read(3 * LARGE, work)
