"""Drafting by a model with another tokenizer than the target's.

Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies", 2502.05202. As in their string-level exact match (SLEM) the target's
text is read in the draft model's tokens, what that writes is encoded in the target's, and
tokens are compared. So the draft model may be of any family, and may use all of its vocabulary;
token-level intersection (TLI) confines it to what both have. Drafts are the draft model's best
tokens, and carry no distribution: each mode judges them as it does copied ones.

Like a draft model of the target's own tokens it runs ahead of the verifier: see `written` for
what of its text stays when the target's goes elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

from services.contract.errors import StartError
from services.contract.types import (
    OpenDraft,
    TokenizerBundle,
    VerifyMode,
    WorkerDescription,
)
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.text.coder import Coder
from services.drafter.methods.text.session import TextSession
from services.drafter.methods.text.written import Languages
from services.drafter.protocol import Ask, Proposed, SessionKey
from services.engine.port import Engine, freed_on_error


class TextDrafter(ModelDrafter):
    """One token of each session's draft per step, in the draft model's own vocabulary.

    `target`: the tokenizer of the target. Drafts are chains. Prompts enter in chunks, as those
    of the model drafter do. Raises StartError for a vocabulary whose tokens have no bytes.
    """

    modes = frozenset(VerifyMode)
    samples = False
    trees = False

    def __init__(self, engine: Engine, target: TokenizerBundle, *, step_tokens: int = 512) -> None:
        if engine.bundle is None:
            raise StartError(f"text: {engine.model_id} has no tokenizer")
        super().__init__(engine, step_tokens=step_tokens)
        self._target = target
        draft = Coder(engine.bundle, engine.model_id)
        self._languages = Languages(Coder(target, "the target"), draft)

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Bound to the draft model, and to the target's tokenizer."""
        own = super().describe(worker)
        return replace(
            own,
            tokenizer_fingerprint=self._target.fingerprint,
            vocab_size=self._languages.target.size,
        )

    def _session(
        self,
        key: SessionKey,  # noqa: ARG002
        opening: OpenDraft,
        reserve: int,
        vocab_size: int,
    ) -> TextSession:
        longest = self._engine.max_context_length
        # Of no use to others: its tokens are not those of the prompt.
        with freed_on_error(self._engine.new_cache(reserve)) as cache:
            return TextSession(opening, cache, self._languages, vocab_size, longest)

    def _bounds(self, opening: OpenDraft) -> tuple[int, int]:
        """The draft model's vocabulary, and tokens to reserve K/V for: as many as the target has.

        It may take more; K/V grows then, where there is room.
        """
        longest = len(opening.prompt) + opening.sampling.max_tokens
        return self._engine.vocab_size, min(longest, self._engine.max_context_length)

    def _form(self, key: SessionKey, opening: OpenDraft) -> None:
        """A format is one of the target's tokens, and is not followed."""

    def _held(self, ask: Ask) -> Proposed | None:
        session = self._sessions[ask.key]
        session.follow(ask)
        return None if session.may_draft(ask) else Proposed(final=True)
