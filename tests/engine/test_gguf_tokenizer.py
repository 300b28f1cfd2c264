"""Tokenizers of GGUF files give the ids that the format's own project gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from services.engine.checkpoint.bundle import make_bundle
from services.engine.checkpoint.gguf_file import GgufFile
from services.engine.checkpoint.gguf_splits import BEGINNING, PATTERNS, WHOLE_WORDS
from services.engine.checkpoint.gguf_tokenizer import read_tokenizer
from tests.models import tiny_model

pytest.importorskip("gguf")
LLAMA_CPP = os.environ.get("PACELINE_LLAMA_CPP", "")
"""A checkout of llama.cpp, which the sdist of llama-cpp-python has one of in `vendor/llama.cpp`."""
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
NORMAL, UNKNOWN, CONTROL, OF_USERS, BYTE = 1, 2, 3, 4, 6


@pytest.fixture
def written(tmp_path):
    """Write a file without tensors, and read its tokenizer."""
    import gguf

    def write(model, tokens, kinds=None, merges=None, scores=None, architecture="llama", **rest):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
        writer.add_tokenizer_model(model)
        writer.add_token_list(tokens)
        writer.add_token_types(kinds or [NORMAL] * len(tokens))
        if merges is not None:
            writer.add_token_merges(merges)
        if scores is not None:
            writer.add_token_scores(scores)
        for name, value in rest.items():
            add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
            add[type(value)](name.replace("__", "."), value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return read_tokenizer(GgufFile(tmp_path / "m.gguf"))

    return write


@pytest.fixture
def of_bytes(written):
    def write(merges, extra=(), **rest):
        words = [merge.replace(" ", "") for merge in merges]
        tokens = [*ALPHABET, *words, *(token for token, _ in extra)]
        kinds = [NORMAL] * (len(tokens) - len(extra)) + [kind for _, kind in extra]
        return written("gpt2", tokens, kinds, merges, **rest)

    return write


def cut(name, text):
    """The words that a name cuts a text into."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    return [word for word, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "He's 12345 ½!", ["He", "'s", " 12345", " ½", "!"]),
        ("smollm", "He's 123 ½!", ["He", "'s", " ", "1", "2", "3", " ", "½", "!"]),
        ("llama-bpe", "HE'S 12345!\n\n x", ["HE", "'S", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", "a\n 12", ["a", "\n", " ", "1", "2"]),
        ("qwen35", "ก็", ["ก็"]),
        ("qwen2", "ก็", ["ก", "็"]),
        ("falcon", "3333 y'all =", ["333", "3", " y", "'", "all", " ", "="]),
        ("tekken", "camelCase's 12", ["camel", "Case", "'s", " ", "1", "2"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
        ("deepseek-llm", "I'm 12 我想 ½", ["I", "'", "m", " ", "12", " ", "我想", " ", "½"]),
        ("deepseek-coder", "x, 12我", ["x", ",", " ", "1", "2", "我"]),
        ("deepseek-v3", "foo.bar 1234我", ["foo", ".bar", " ", "123", "4", "我"]),
        ("bloom", "one, two", ["one", ",", " two"]),
        ("viking", "one 12", ["one", " ", "1", "2"]),
        ("minicpm5", "a1234", ["a", "123", "4"]),
        ("superbpe", "a b 12345", ["a b ", "12", "345"]),
        ("seed-coder", "a;\n1", ["a", ";", "\n", "1"]),
        ("bailingmoe", "he'LL\n\n1", ["he", "'LL", "\n\n", "1"]),
        ("default", "a1234!", ["a", "123", "4", "!"]),
    ],
)
def test_a_name_says_where_words_end(name, text, words):
    assert cut(name, text) == words


def test_every_name_has_patterns_that_lose_no_letter():
    text = "Hello, y'all!  12345 \n\n\t ½ 我想 camelCase's foo_bar/baz\r\n ก็  "
    assert all("".join(cut(name, text)) == text for name in PATTERNS)
    assert PATTERNS.keys() >= WHOLE_WORDS >= BEGINNING


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", ["abc"]), ("gpt-2", ["ab", "c"])])
def test_a_word_that_is_an_entry_is_taken_whole_where_the_name_says_so(of_bytes, pre, ids):
    tokenizer = of_bytes(["a b"], [("abc", NORMAL)], tokenizer__ggml__pre=pre)
    assert tokenizer.tokenize("abc") == ids


def test_tokens_in_foreign_letters_keep_their_numbers(of_bytes):
    extra = [("<｜begin▁of▁sentence｜>", CONTROL), ("  ", OF_USERS), ("<think>", OF_USERS)]
    tokenizer = of_bytes(
        ["a b"],
        extra,
        tokenizer__ggml__pre="deepseek-llm",
        tokenizer__ggml__bos_token_id=257,
        tokenizer__ggml__add_bos_token=True,
    )
    assert len(tokenizer) == 260
    assert tokenizer.bos_token_id == 257
    ids = tokenizer("ab  <think>a")["input_ids"]
    assert ids == [257, 256, 258, 259, ALPHABET.index("a")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab  <think>a"


@pytest.mark.parametrize(("pre", "first"), [("llama-bpe", [256]), ("qwen2", [])])
def test_a_text_begins_as_the_name_says_where_the_file_does_not(of_bytes, pre, first):
    settings = {"tokenizer__ggml__pre": pre, "tokenizer__ggml__bos_token_id": 256}
    tokenizer = of_bytes([], [("<s>", CONTROL)], **settings)
    assert tokenizer("a")["input_ids"] == [*first, ALPHABET.index("a")]
    without = of_bytes([], [("<s>", CONTROL)], tokenizer__ggml__add_bos_token=False, **settings)
    assert without("a")["input_ids"] == [ALPHABET.index("a")]


@pytest.mark.parametrize("pre", ["no-such-name", "default", ""])
def test_a_file_that_does_not_say_how_words_are_cut_is_read_with_one_warning(of_bytes, caplog, pre):
    tokenizer = of_bytes(["1 2"], tokenizer__ggml__pre=pre)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"tokenizer.ggml.pre is {pre or 'default'}" in caplog.text
    assert tokenizer.tokenize("12345") == ["12", "3", "4", "5"]


def test_a_name_that_is_known_warns_of_nothing(of_bytes, caplog):
    of_bytes([], tokenizer__ggml__pre="gpt-2")
    assert not caplog.records


def test_merges_that_make_no_token_or_are_made_of_none_merge_nothing(written):
    merges = ["a b", "b c", "abc d", "nothing", " a"]
    tokenizer = written("gpt2", [*ALPHABET, "ab"], merges=merges, tokenizer__ggml__pre="gpt-2")
    assert tokenizer.tokenize("abcd") == ["ab", "c", "d"]


@pytest.fixture
def of_pieces(written):
    def write(pieces, extra=(), **rest):
        """Pieces are the better the earlier they come."""
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
        scores = [0.0] * len(tokens) + [-float(place) for place in range(len(pieces))]
        tokens += [*pieces, *(token for token, _ in extra)]
        settings = {"tokenizer__ggml__bos_token_id": 1, "tokenizer__ggml__eos_token_id": 2}
        return written(
            "llama",
            tokens,
            kinds + [kind for _, kind in extra],
            scores=scores + [0.0] * len(extra),
            **{**settings, **rest},
        )

    return write


PIECES = ["▁▁", "▁a", "ab", "▁", "a", "b"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a", ["▁a"]),
        (" a", ["▁▁", "a"]),
        (" ", ["▁▁"]),
        ("a  a", ["▁a", "▁▁", "a"]),
        ("ab", ["▁a", "b"]),
        ("é", ["▁", "<0xC3>", "<0xA9>"]),
        ("a</s>a", ["▁a", "</s>", "▁a"]),
    ],
)
def test_pieces_begin_with_a_blank_of_their_own(of_pieces, text, pieces):
    tokenizer = of_pieces(PIECES)
    assert tokenizer.tokenize(text) == pieces
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == 1
    plain = tokenizer.decode(ids, skip_special_tokens=True)
    assert plain.replace(" ", "") == text.replace("</s>", "").replace(" ", "")


def test_no_blank_comes_first_where_the_file_says_so(of_pieces):
    tokenizer = of_pieces(PIECES, tokenizer__ggml__add_space_prefix=False)
    assert tokenizer.tokenize("ab a") == ["ab", "▁a"]
    assert tokenizer.decode(tokenizer(" ab")["input_ids"], skip_special_tokens=True) == " ab"


def test_gemmas_pieces_are_merged_in_their_order_and_begin_with_no_blank(of_pieces):
    tokenizer = of_pieces(["a", "b", "▁", "ab", "  "], architecture="gemma3")
    assert tokenizer.tokenize("ab  ab") == ["ab", "▁▁", "ab"]


def test_a_long_piece_is_no_long_start(of_pieces):
    tokenizer = of_pieces(["▁", "a", "a" * 1_000_000])
    assert tokenizer.tokenize("a") == ["▁", "a"]


@pytest.mark.parametrize("kind", ["plamo2", "rwkv", "bert"])
def test_a_vocabulary_of_another_kind_is_refused_with_who_reads_it(written, kind):
    with pytest.raises(ValueError, match=f"kind {kind} are not read here; llama.cpp reads them"):
        written(kind, ["a"])


EOM = "tokenizer__ggml__eom_token_id"
ENDS = {"tokenizer__ggml__eos_token_id": 256, "tokenizer__ggml__eot_token_id": 257}


@pytest.mark.parametrize(
    ("extra", "settings", "ends"),
    [
        (["<eos>", "<turn>", "<message>"], {**ENDS, EOM: 258}, {256, 257, 258}),
        (["<eos>", "<end_of_turn>"], {"tokenizer__ggml__eos_token_id": 256}, {256, 257}),
        (["<eos>", "<turn>", "<|im_end|>"], ENDS, {256, 257}),
        (["<|return|>", "<|end|>"], {"tokenizer__ggml__eos_token_id": 256}, {256}),
    ],
)
def test_the_end_of_a_turn_ends_an_output(of_bytes, extra, settings, ends):
    tokenizer = of_bytes([], [(one, CONTROL) for one in extra], **settings)
    assert {*make_bundle(tokenizer, tiny_model("llama")).eos_token_ids} - {1} == ends


def test_a_word_that_reads_like_the_end_of_a_turn_ends_nothing(of_bytes):
    extra = [("<eos>", CONTROL), ("<|im_end|>", NORMAL)]
    tokenizer = of_bytes([], extra, tokenizer__ggml__eos_token_id=256)
    assert 257 not in make_bundle(tokenizer, tiny_model("llama")).eos_token_ids


def test_templates_that_have_names_are_kept_with_them(of_bytes):
    plain = of_bytes([], tokenizer__ggml__pre="gpt-2", tokenizer__chat_template="one")
    assert plain.chat_template == "one"
    named = {"tokenizer__chat_template": "one", "tokenizer__chat_template__tool_use": "two"}
    assert of_bytes([], tokenizer__ggml__pre="gpt-2", **named).chat_template == {
        "default": "one",
        "tool_use": "two",
    }


def vectors():
    """Vocabularies of the format's project that come with texts and their ids."""
    found = sorted(Path(LLAMA_CPP, "models").glob("ggml-vocab-*.gguf.inp")) if LLAMA_CPP else []
    return [file for file in found if "bert" not in file.name]


@pytest.mark.skipif(not LLAMA_CPP, reason="PACELINE_LLAMA_CPP names no checkout of llama.cpp")
@pytest.mark.parametrize("texts", vectors(), ids=lambda file: file.name)
def test_the_vectors_of_the_formats_project_are_right(texts):
    tokenizer = read_tokenizer(GgufFile(texts.with_suffix("")))
    asked = texts.read_text().split("\n__ggml_vocab_test__\n")
    wanted = texts.with_suffix(".out").read_text().split("\n")
    for text, line in zip(asked, wanted, strict=False):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == [int(number) for number in line.split()], text
        assert tokenizer.decode(ids) == text
