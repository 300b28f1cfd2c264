"""One causal language model, many sessions, one forward at a time."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.budgeted import BudgetedEngine
from services.engine.checkpoint.bundle import make_bundle
from services.engine.checkpoint.fingerprint import combine, model_fingerprint
from services.engine.invariance_check import TOKENS, check
from services.engine.limits import max_context
from services.engine.native.device_memory import free_bytes, kv_capacity, room_to_run
from services.engine.native.kv import Loan, PagedBudget, PagedCache
from services.engine.native.layout import Layout
from services.engine.native.loading import load_model
from services.engine.native.packing import ByteLinear, WideByteLinear
from services.engine.native.prepare import is_part, prepare
from services.engine.native.skipping.skipper import Skipper
from services.engine.native.soft_tokens import SoftTokens
from services.engine.native.states import LayerStates
from services.engine.number_formats import number_format
from services.engine.port import Capability, KVCache, Segment
from services.engine.skip_mask import SkipMask
from services.engine.spec import INT8, ModelSpec
from services.engine.stages import stage
from services.engine.threads import pin

if TYPE_CHECKING:
    from services.contract.types import TokenizerBundle

logger = logging.getLogger(__name__)


class NativeEngine(BudgetedEngine):
    """A loaded model that runs packed, ragged steps. Single-threaded: one caller at a time."""

    head_ids: Tensor | None = None

    def __init__(
        self,
        model: Any,
        spec: ModelSpec,
        *,
        fingerprint: str = "",
        bundle: TokenizerBundle | None = None,
    ) -> None:
        """Wrap a prepared model; use `load` or `from_model` instead."""
        config = model.config.get_text_config()
        self._model, self._device = model, model.device
        self.model_id = spec.model
        self.dtype = spec.dtype
        self.fingerprint = fingerprint
        self.bundle = bundle
        self.vocab_size: int = config.vocab_size
        self.max_context_length = max_context(config, spec.max_context)
        self.eos_token_ids: tuple[int, ...] = bundle.eos_token_ids if bundle else ()
        self.num_layers: int = config.num_hidden_layers
        self.hidden_width: int = config.hidden_size
        self.budget: PagedBudget = PagedBudget(spec.kv_capacity_tokens or 0, self.num_layers)
        computed = number_format(spec.dtype, str(model.device)).computed
        default = computed is torch.float32 and model.device.type == "cpu" and not is_part(model)
        wanted = spec.batch_invariant
        self.batch_invariant = default if wanted is None else wanted
        """Whether the bits of a row of logits depend on its own text alone."""
        self._skipper: Skipper | None = None
        self._soft: SoftTokens | None = None
        self._states: LayerStates | None = None

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any = None,
        spec: ModelSpec | None = None,
        *,
        check: bool = True,
    ) -> NativeEngine:
        """An engine on a copy of a transformers model in memory.

        Raises StartError when the self-check fails.
        """
        dtype = str(model.dtype).removeprefix("torch.")
        spec = spec or ModelSpec(model=model.config.model_type, dtype=dtype)
        bundle = make_bundle(tokenizer, model) if tokenizer is not None else None
        fingerprint = model_fingerprint(model, spec.dtype)
        engine = cls(copy.deepcopy(model), spec, fingerprint=fingerprint, bundle=bundle)
        engine._start(spec, check=check)
        return engine

    @classmethod
    def load(cls, spec: ModelSpec) -> NativeEngine:
        """Load the weights of `spec.model`, prepare and check them.

        Raises StartError, one line, for a missing or broken file, an architecture that is
        not supported, or a failed self-check.
        """
        pin(spec.threads)
        loaded = load_model(spec, apart=not spec.differentiable)
        engine = cls(loaded.model, spec, fingerprint=loaded.fingerprint, bundle=loaded.bundle)
        engine._start(spec)
        return engine

    @classmethod
    def taking(cls, model: Any, spec: ModelSpec) -> NativeEngine:
        """An engine on this very model, which it prepares and checks: no copy of it."""
        pin(spec.threads)
        engine = cls(model, spec)
        engine._start(spec)
        return engine

    def _start(self, spec: ModelSpec, *, check: bool = True) -> None:
        with room_to_run(self._model, self.model_id):
            self._prepare(spec, check=check)
            per_token = self._bytes_per_token()
        self.budget.capacity = kv_capacity(
            self.model_id,
            spec.kv_capacity_tokens,
            per_token,
            self.max_context_length,
            free_bytes(self._device),
        )

    def _prepare(self, spec: ModelSpec, *, check: bool) -> None:
        try:
            self._prepare_as_told(spec, check=check)
        except StartError as error:
            if spec.batch_invariant is not None or not self.batch_invariant:
                raise
            logger.warning("%s: so texts are equal up to near-ties", error)
            self.batch_invariant = False
            self._prepare_as_told(spec, check=check)

    def _prepare_as_told(self, spec: ModelSpec, *, check: bool) -> None:
        prepare(
            self._model,
            self.model_id,
            self.forward,
            check=check,
            differentiable=spec.differentiable,
            rounded=_rounded(spec),
            invariant=self.batch_invariant,
        )
        bits = self._bits() if self.batch_invariant else ""
        # Where nobody asked for it, sessions may move between CPUs that round otherwise.
        if spec.batch_invariant:
            self.fingerprint = combine(self.fingerprint, bits)

    def _bits(self) -> str:
        """What tells workers apart that would write different texts."""
        stage("checks that no row depends on others")
        budget = PagedBudget(TOKENS, self.budget.layers)
        limits = self.vocab_size, self.max_context_length
        return check(self.forward, lambda most: PagedCache(budget, most), *limits, self.model_id)

    def _bytes_per_token(self) -> int:
        probe = PagedCache(PagedBudget(1, self.budget.layers), 1)
        self.forward([Segment(probe, [0], logits_from=1)])
        return probe.bytes_per_token

    def give_soft_tokens(self, embeddings: Tensor) -> None:
        """Let the ids in `soft_ids` stand for `embeddings` [n, width] in a segment.

        They have the scale of what the model's embedding module puts out. Their K/V is
        for the caller to roll back. Raises StartError for embeddings of another width.
        """
        self._soft = SoftTokens(self._model, embeddings, self.vocab_size)

    @property
    def model(self) -> Any:
        """The transformers model, frozen and on the ragged attention; for training beside it."""
        return self._model

    @property
    def soft_ids(self) -> range:
        """Token ids that stand for soft tokens, right after the vocabulary."""
        return range(self.vocab_size, self.vocab_size + len(self._soft or ()))

    def new_cache(self, reserve: int) -> PagedCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        return PagedCache(self.budget, reserve)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], skip: SkipMask | None = None) -> list[Tensor]:
        """Append the segments' tokens to their caches in one pass of the model.

        Returns per segment the logits [rows, V] in float32. `skip`: sub-layers to leave out. Raises
        ValueError, with nothing changed, for a segment that does not fit, or whose
        cache lacks K/V of a layer that is not skipped; StartError, at the first
        mask, for an architecture that cannot skip.
        """
        if not segments:
            return []
        if skip is None or skip.empty:
            return self._compute(self._lay_out(segments))
        layout = self._lay_out(segments, skip.attention)
        with self.skipper().without(skip):
            return self._compute(layout)

    def _lay_out(
        self, segments: Sequence[Segment], skipped: frozenset[int] = frozenset()
    ) -> Layout:
        layout = Layout(segments, skipped, invariant=self.batch_invariant)
        self.check_ranges(layout.token_ids, layout.positions, len(self.soft_ids))
        return layout

    def watch(self, layers: Sequence[int]) -> None:
        """Choose the layers whose states `forward_with_states` gives; see the port."""
        self._states = LayerStates(self._model, layers, self.model_id)

    @torch.inference_mode()
    def forward_with_states(self, segments: Sequence[Segment]) -> tuple[list[Tensor], list[Tensor]]:
        """As `forward`, and the states of all new tokens in the layers that are watched."""
        assert self._states is not None, "no layers are watched"
        if not segments:
            return [], []
        layout = self._lay_out(segments)
        with self._states.kept():
            rows = self._rows(layout)
            counts = [piece.count for piece in layout.pieces]
            states = self._states.rows().split_with_sizes(counts)
        layout.commit(self.num_layers)
        return rows, list(states)

    @torch.inference_mode()
    def _compute(self, layout: Layout) -> list[Tensor]:
        rows = self._rows(layout)
        # Last of all: a step that failed is run again, and its tokens must not stand there twice.
        layout.commit(self.num_layers)
        return rows

    def _rows(self, layout: Layout) -> list[Tensor]:
        """Logits float32 of each segment."""
        return list(self._run(layout).float().split_with_sizes(layout.logit_counts))

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All."""
        return frozenset(Capability)

    def borrow(self, cache: KVCache) -> Loan:
        """A loan of a cache of this engine."""
        assert isinstance(cache, PagedCache)
        return Loan(cache)

    def require_skipping(self) -> None:
        """Raise StartError for an architecture whose layers cannot be left out."""
        self.skipper()

    def skipper(self) -> Skipper:
        """What leaves sub-layers out; StartError for an architecture that cannot skip."""
        if self._skipper is None:
            self._skipper = Skipper(self._model, self.model_id, self._run)
        return self._skipper

    def _run(self, layout: Layout) -> Tensor:
        """Logits [wanted rows, V] of one packed pass."""
        device = self._device
        output = self._model(
            **self._inputs(torch.tensor([layout.token_ids], device=device)),
            position_ids=torch.tensor([layout.positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(layout.logit_rows, dtype=torch.long, device=device),
            paceline_layout=layout,
        )
        return output.logits[0]  # type: ignore[no-any-return]

    def _inputs(self, token_ids: Tensor) -> dict[str, Tensor]:
        """Ids as they are; embeddings only for a step that has soft tokens."""
        if self._soft is None or int(token_ids.max()) < self.vocab_size:
            return {"input_ids": token_ids}
        return {"inputs_embeds": self._soft.embed(token_ids)}


def _rounded(spec: ModelSpec) -> type[ByteLinear] | None:
    """The class of int8 weights that a model is to have; None: none."""
    if spec.dtype != INT8:
        return None
    return ByteLinear if spec.judged else WideByteLinear
