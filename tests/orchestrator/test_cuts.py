"""A long text is tokenized in parts, which together have the tokens of the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from orchestrator.frontdoor.grpc.decoding import read_request
from orchestrator.frontdoor.requests import build_spec
from orchestrator.text import Tokenizer, TooLong
from orchestrator.text import tokenizer as tokenizer_module
from orchestrator.text.cuts import cuts_of
from orchestrator.text.tokenizer import LONGEST_PART
from services.contract.errors import InvalidRequest
from tests.docs.pages import ROOT
from tests.orchestrator.request_kit import MODEL
from tests.orchestrator.text_kit import BOS, EOS, TEXT, bundle, sentencepiece_backend
from tests.tries import tries

MIB = 1 << 20
MARK = "<tool>"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
HEAD, ANY = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = (
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{END}"
)
FIRST = r"[^\r\n\p{L}\p{N}]?"
O200K = (
    rf"{FIRST}{HEAD}*{ANY}+{SHORT}?|{FIRST}{HEAD}+{ANY}*{SHORT}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{END}"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{END}",
)
SAID = (TEXT, "12 is 3456, don't. ", "law 你好，世界。 /ok/ the end!\n\n  (a) ")
PIECES = (
    *("the law", "rides ", " ", "  ", "\n", "\r\n", "\t", "7", "1234567", "a", "B", "é"),
    *("don't", "'s", "漢字", "你好", "。", "，", ".", ",", "!", "(", ") ", "/", "_", "🙂", "\0"),
    *(
        "<｜begin▁of▁text｜>",
        "\u0301",
        "ᄀ\u1161\u11a8",
        EOS,
        MARK,
        "▁",
        "\u00a0",
        "\u3000",
        "Σ",
        "ſ",
        "가",
    ),
)
WORDS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=80)


def by_bytes(*splits: str, ignore_merges: bool = False) -> Backend:
    """Byte-level BPE whose words are those of expressions, or those of GPT-2."""
    backend = Backend(models.BPE(ignore_merges=ignore_merges))
    found = [pre_tokenizers.Split(Regex(one), "isolated") for one in splits]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*found, last])
    given = {"special_tokens": [BOS, EOS, MARK], "show_progress": False}
    given["initial_alphabet"] = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(SAID * 3, trainers.BpeTrainer(vocab_size=380, **given))
    return backend


def deepseek() -> Backend:
    backend = by_bytes(*DEEPSEEK)
    backend.add_tokens(["<｜begin▁of▁text｜>"])
    return backend


def composing() -> Backend:
    backend = by_bytes(CL100K)
    backend.normalizer = normalizers.NFC()
    return backend


def digits_apart() -> Backend:
    backend = by_bytes()
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), words])
    return backend


def beginning_with_space() -> Backend:
    backend = by_bytes()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return backend


def framed() -> Backend:
    """With a token before every text, and one behind."""
    backend = by_bytes(CL100K, ignore_merges=True)
    both = [(name, backend.token_to_id(name)) for name in (BOS, EOS)]
    backend.post_processor = processors.TemplateProcessing(f"{BOS} $A {EOS}", special_tokens=both)
    return backend


def without_words(*changes: Any, split: Any = None) -> Backend:
    """BPE over whole texts, whose spaces are written ▁."""
    made = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", EOS, MARK], show_progress=False
    )
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.train_from_iterator(SAID * 3, made)
    backend.normalizer = normalizers.Sequence(list(changes)) if changes else None
    backend.pre_tokenizer = split
    return backend


def metaspace() -> Backend:
    return without_words(split=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))


SPACES = normalizers.Replace(" ", "▁")
ALL = {
    "gpt-2": by_bytes,
    "llama 3": lambda: by_bytes(CL100K, ignore_merges=True),
    "o200k": lambda: by_bytes(O200K),
    "deepseek": deepseek,
    "qwen": composing,
    "digits apart": digits_apart,
    "beginning with a space": beginning_with_space,
    "framed": framed,
    "gemma": lambda: without_words(SPACES, split=pre_tokenizers.Split(" ", "merged_with_previous")),
    "llama 2": lambda: without_words(normalizers.Prepend("▁"), SPACES),
    "metaspace": metaspace,
}


@cache
def made_of(name: str) -> Tokenizer:
    return Tokenizer(bundle(ALL[name]()))


@pytest.mark.parametrize("name", ALL)
@tries(60)
@given(text=WORDS, kept=st.integers(1, 60), special=st.booleans(), size=st.sampled_from((1, 9)))
def test_the_last_tokens_of_a_text_are_those_of_the_whole(
    name: str, text: str, kept: int, special: bool, size: int
) -> None:
    made = made_of(name)
    whole = made.encode(text, special)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_SHORTEST_PART", size)
        patch.setattr(tokenizer_module, "_FIRST_LOOK", 0)
        assert made.encode(text, special, kept=kept) == whole[-kept:]
        if whole:
            assert made.encode(text, special, most=len(whole)) == whole
            with pytest.raises(TooLong):
                made.encode(text, special, most=len(whole) - 1)


@pytest.mark.parametrize("name", ALL)
def test_every_tokenizer_of_a_known_kind_cuts_common_text(name: str) -> None:
    cuts = made_of(name)._cuts
    assert cuts is not None
    assert cuts.before("the drafter rides", 16, 0) == len("the drafter")


@pytest.mark.parametrize(
    "change",
    [
        lambda backend: setattr(backend, "normalizer", normalizers.NFKC()),
        lambda backend: backend.add_tokens([AddedToken("the law")]),
        lambda backend: backend.add_tokens([AddedToken("<w>", single_word=True)]),
        lambda backend: backend.add_tokens([AddedToken("stop", rstrip=True)]),
        lambda backend: setattr(
            backend,
            "pre_tokenizer",
            pre_tokenizers.Split(Regex(r"(?<=the) law|\p{L}+|\s+"), "isolated"),
        ),
        lambda backend: setattr(
            backend,
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                    pre_tokenizers.Split(Regex(CL100K), "isolated"),
                ]
            ),
        ),
        lambda backend: setattr(
            backend,
            "pre_tokenizer",
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ),
    ],
)
def test_there_is_no_cut_where_a_rule_may_look_across_it(change: Any) -> None:
    backend = by_bytes()
    assert cuts_of(json.loads(backend.to_str())) is not None
    change(backend)
    assert cuts_of(json.loads(backend.to_str())) is None


def test_there_is_no_cut_where_a_token_holds_a_word_and_the_space_behind_it() -> None:
    assert cuts_of(json.loads(sentencepiece_backend(None).to_str())) is None


@pytest.mark.parametrize("name", ["gpt-2", "gemma", "llama 2"])
@pytest.mark.parametrize("kept", [1, 60, 20_000])
def test_of_a_long_text_no_more_than_its_end_is_tokenized(
    monkeypatch: pytest.MonkeyPatch, name: str, kept: int
) -> None:
    made, seen = made_of(name), []
    real = made._encoding

    def noted(part: str, special: bool) -> Any:
        seen.append(len(part))
        return real(part, special)

    monkeypatch.setattr(made, "_encoding", noted)
    assert len(made.encode("the law rides 12 " * (4 * MIB // 17), kept=kept)) == kept
    assert sum(seen) < max(5_000, 8 * kept)
    assert max(seen) <= LONGEST_PART


@pytest.mark.parametrize("said", ["prompt", "conversation"])
def test_a_text_without_a_place_to_cut_is_refused_where_only_its_end_is_wanted(said: str) -> None:
    text = "a" * (4 * MIB)
    talk = pb.Conversation(messages=[pb.Message(role="user", content=text)])
    asked = {"prompt": text} if said == "prompt" else {"conversation": talk}
    with pytest.raises(InvalidRequest) as refused:
        build_spec(
            read_request(pb.GenerateRequest(**asked, truncate_prompt_tokens=9)),
            made_of("gpt-2"),
            MODEL,
        )
    assert refused.value.field == said
    allowed = f"with truncate_prompt_tokens at most {LONGEST_PART} without a place to cut"
    assert refused.value.allowed.startswith(allowed)


def test_where_a_tokenizer_offers_no_cut_a_long_text_is_refused_and_a_shorter_one_is_not() -> None:
    made = Tokenizer(bundle(sentencepiece_backend(None)))
    assert len(made.encode("the law" * 9_000, kept=9)) == 9
    with pytest.raises(TooLong) as refused:
        made.encode("the law " * 20_000, kept=9)
    assert "no safe cut" in refused.value.allowed


CHILD = """
import resource
from smg_grpc_proto.generated import vllm_engine_pb2 as engine
from orchestrator.frontdoor.vllm_gateway.request import to_request
from tests.orchestrator.test_cuts import *

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

tokenizer, text = made_of("gpt-2"), "the law rides 12 " * (4 * MIB // 17)
def build(request):
    return len(build_spec(request, tokenizer, MODEL).prompt)

cut = {"truncate_prompt_tokens": 60}
talk = {"messages": [pb.Message(role="user", content=text)]}
assert build(read_request(pb.GenerateRequest(prompt="the law", **cut))) == 2
before = peak()
assert build(read_request(pb.GenerateRequest(prompt=text, **cut))) == 60
assert build(read_request(pb.GenerateRequest(conversation=talk, **cut))) == 60
assert build(to_request(engine.GenerateRequest(text=text, sampling_params=cut))) == 60
print((peak() - before) / len(text))
"""


def test_reading_the_end_of_a_text_takes_a_few_times_its_size() -> None:
    ran = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, cwd=ROOT, check=True)
    # The whole of it would take a hundred times.
    assert float(ran.stdout) < 8
