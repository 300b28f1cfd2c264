"""Small tokenizers built on the spot, as bundles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from orchestrator.text import Conversation, Tokenizer
from services.contract.types import TokenizerBundle

EOS = "<|im_end|>"
BOS = "<|im_start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' and not loop.last and loop.nextitem['role'] == 'user' %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = "the drafter rides; the large verifier checks — naïve café 你好 🙂 and keeps each law "


def bundle(backend: Backend, chat_template: str = CHAT_TEMPLATE) -> TokenizerBundle:
    eos = backend.token_to_id(EOS)
    ends = {"eos_token_ids": () if eos is None else (eos,), "bos_token": BOS, "eos_token": EOS}
    return TokenizerBundle("test", backend.to_str(), chat_template, **ends)


def conversation(*turns: tuple[str, str]) -> Conversation:
    """Of (role, content)."""
    return Conversation([{"role": role, "content": content} for role, content in turns])


def byte_level_backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    given = {"special_tokens": [BOS, EOS, "<tool>"], "show_progress": False}
    given["initial_alphabet"] = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=330, **given)
    backend.train_from_iterator([TEXT * 3], trainer)
    backend.add_tokens(["plain ünïcode added"])
    return backend


def numbered(words: list[str]) -> dict[str, int]:
    return {word: i for i, word in enumerate(words)}


def sentencepiece_backend(decoder: object) -> Backend:
    """Metaspace and byte fallback, as Llama 2 has them."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "▁the", "▁law", "a", "b", "e", "h", "l", "t", "w", "é", "▁▁", ",", "�", "▁a▁b"]
    vocab, unknown = numbered(words), {"unk_token": "<unk>", "fuse_unk": True}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True, **unknown))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoder
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def llama_decoder() -> object:
    return decoders.Sequence([gemma_decoder(), decoders.Strip(" ", 1, 0)])


def gemma_decoder() -> object:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def suffix_backend() -> Backend:
    """The first BPE models: a word ends in `</w>`, which becomes a space before the next."""
    words = ["the</w>", "law</w>", "dra", "fter</w>", "is</w>", "!</w>"]
    backend = Backend(models.BPE(vocab=numbered(words), merges=[]))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return backend


def wordpiece_backend() -> Backend:
    words = ["[UNK]", "the", "draft", "##er", "is", ".", "##s", "fast"]
    backend = Backend(models.WordPiece(vocab=numbered(words), unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return backend


BACKENDS: dict[str, Callable[[], Backend]] = {
    "byte_level": byte_level_backend,
    "llama": lambda: sentencepiece_backend(llama_decoder()),
    "gemma": lambda: sentencepiece_backend(gemma_decoder()),
    "metaspace": lambda: sentencepiece_backend(decoders.Metaspace()),
    "suffix": suffix_backend,
    "wordpiece": wordpiece_backend,
}


@cache
def tokenizer(name: str = "byte_level") -> Tokenizer:
    return Tokenizer(bundle(BACKENDS[name]()))
