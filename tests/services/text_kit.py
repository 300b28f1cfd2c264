"""Two vocabularies without a model, and a model that says a text it knows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from services.contract.types import TokenizerBundle
from services.drafter.methods.text.coder import Coder
from services.drafter.methods.text.text import TextDrafter
from tests.fake_engine import FakeEngine
from tests.services.drafter_kit import Harness

SENTENCE = "the small drafter rides ahead and the large verifier checks tokens, 日本 und Grüße: "
OTHER = "a strawberry is a berry; drafting in words that others read, once more and once more "
EOS = "<|end|>"


def bundle(tokenizer: Tokenizer, eos: str = EOS, bos: str = "") -> TokenizerBundle:
    """What a worker tells of it."""
    text = tokenizer.to_str()
    end = tokenizer.token_to_id(eos)
    assert end is not None
    return TokenizerBundle(
        f"{hash(text):x}", text, eos_token_ids=(end,), eos_token=eos, bos_token=bos
    )


@cache
def byte_level(size: int = 300, text: str = SENTENCE, eos: str = EOS) -> TokenizerBundle:
    """Byte-level BPE, as GPT-2 has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|start|>", eos],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text * 3], trainer)
    return bundle(tokenizer, eos)


@cache
def sentence_piece(text: str = SENTENCE, *, prepend: bool = True) -> TokenizerBundle:
    """BPE over whole texts with bytes as the last resort, as Llama 2 has it."""
    normal = [normalizers.Prepend("▁")] if prepend else []
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([*normal, normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    words = text.split(" ") * 3
    tokenizer.train_from_iterator(words if prepend else [" " + word for word in words], trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    written = json.loads(tokenizer.to_str())
    # Bytes are tokens like others, and no text is one.
    written["added_tokens"] = [added for added in written["added_tokens"] if added["id"] < 3]
    return bundle(Tokenizer.from_str(json.dumps(written)), "</s>", "<s>")


@cache
def lower_case() -> TokenizerBundle:
    """One whose tokens do not spell the text."""
    tokenizer = Tokenizer.from_str(byte_level().tokenizer_json)
    tokenizer.normalizer = normalizers.Lowercase()
    return bundle(tokenizer)


def coder(own: TokenizerBundle) -> Coder:
    return Coder(own, "test")


class Teller(FakeEngine):
    """Goes on as `story` does, wherever the text ends like a part of it; else it babbles."""

    def __init__(self, own: TokenizerBundle, story: str, **more: Any) -> None:
        self.coder = coder(own)
        super().__init__(vocab_size=self.coder.size, **more)
        self.bundle = own
        self.story = story.encode()

    def logits(self, text: Sequence[int]) -> Tensor:
        row = super().logits(text) * 0.1
        token = self._next(b"".join(self.coder.bytes_of(token) or b"" for token in text))
        if token is not None:
            row[token] += 100.0
        return row

    def _next(self, said: bytes) -> int | None:
        for size in range(min(24, len(said)), 2, -1):
            at = self.story.find(said[-size:])
            if at >= 0:
                rest = self.story[at + size :]
                return self.coder.encode(rest).ids[0] if rest else self.coder.ends[0]
        return None


class Texts(Harness):
    """A core with a text drafter that tells a story in other words than the target's."""

    def __init__(
        self,
        target: TokenizerBundle,
        draft: TokenizerBundle,
        story: str = SENTENCE,
        step_tokens: int = 64,
        **more: Any,
    ) -> None:
        engine = Teller(draft, story, **more)
        self.target = coder(target)
        super().__init__(engine, drafter=TextDrafter(engine, target, step_tokens=step_tokens))

    def begin(self, text: str, **changes: Any) -> None:
        """Open the session `s` on a text."""
        self.open("s", self.encode(text), **({"vocab_size": self.target.size} | changes))

    def encode(self, text: str) -> list[int]:
        return self.target.encode(text.encode()).ids

    def spell(self, tokens: Iterable[int]) -> str:
        """The bytes of tokens of the target; marks as they are written."""
        known = ((self.target.bytes_of(token), token) for token in tokens)
        data = b"".join(own or self.target.written(token).encode() for own, token in known)
        return data.decode(errors="replace")

    def said(self) -> str:
        """All that was drafted behind the committed text."""
        self.run()
        session = self.session
        return self.spell(session.text[session.prompt_length + session.committed_length :])

    def check(self) -> None:
        """K/V is what the draft model's tokens say, and nothing failed."""
        assert not self.gone
        written, cache = self.state._written, self.state.cache
        right = min(cache.length, written.unchanged)
        assert cache.tokens[:right] == written.ids[:right]
