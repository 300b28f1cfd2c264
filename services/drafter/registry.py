"""Names of drafting methods, and how each is made.

A factory imports its method when it is called: `ngram` loads neither torch nor
numpy. It hands the method its own few numbers, never the settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from services.contract.errors import StartError
from services.engine.checkpoint.heads import is_head
from services.grammar.vetting import vetting_of

if TYPE_CHECKING:
    from services.drafter.methods.graph.tree_growth import GrowthPlan
    from services.drafter.methods.model.model import ModelDrafter
    from services.drafter.methods.ngram.text_pool import Archive
    from services.drafter.methods.self_draft.borrowing import Borrowing
    from services.drafter.protocol import Drafter
    from services.drafter.settings import DrafterSettings
    from services.engine.lending import Lending
    from services.engine.port import Engine, SelfDrafting, StateDrafting
    from services.engine.spec import ModelSpec
    from services.engine.structure import Structures
    from services.grammar.vetting import Vetting

_log = logging.getLogger(__name__)

_Formed = TypeVar("_Formed", bound="ModelDrafter")


class Beside:
    """What a drafter in its verifier's process is given: the engine, and its sessions' K/V."""

    def __init__(self, load: Callable[[], Engine], lending: Lending, vetting: Vetting) -> None:
        """`load` is called once, when the engine is asked for first."""
        self._load, self._vetting = load, vetting
        self.lending = lending

    @cached_property
    def engine(self) -> Engine:
        """The verifier's."""
        return self._load()

    @cached_property
    def structures(self) -> Structures | None:
        """What compiles response formats for both."""
        from services.engine.structure import structures_of

        return structures_of(self.engine, self._vetting)


class Engines:
    """What the methods of one drafter run on, each loaded once and shared by them."""

    def __init__(self, settings: DrafterSettings, beside: Beside | None) -> None:
        self._settings, self._beside = settings, beside
        self._vetting = vetting_of(settings)
        self._structures: dict[Engine, Structures | None] = {}
        self._target: SelfDrafting | None = None

    @cached_property
    def draft(self) -> Engine:
        """The draft model."""
        settings = self._settings
        if settings.synthetic is not None:
            from services.contract.types import Role
            from services.engine import start

            return start.synthetic(
                settings.synthetic,
                Role.DRAFTER,
                threads=settings.threads,
                kv_capacity_tokens=settings.kv_capacity_tokens,
            )
        if is_head(settings.draft):
            raise StartError(
                f"draft: {settings.draft} is a head, which the method eagle drafts with"
            )
        return _load(settings, settings.draft or "", settings.draft_base, drafts=True)

    @cached_property
    def head(self) -> StateDrafting:
        """The head of an EAGLE-3 drafter."""
        from services.engine import start

        settings = self._settings
        if settings.synthetic is not None:
            raise StartError("synthetic: there is no synthetic head")
        head = start.head(_spec(settings, settings.draft or "", settings.draft_base, drafts=True))
        if self._beside is not None and settings.head_floor:
            start.settle_head(head, self._beside.engine, settings.head_floor)
        return head

    def target(self, name: str) -> SelfDrafting:
        """The target: the verifier's own where that is in this process."""
        from services.engine.start import self_drafting

        method = f"method {self._settings.method}"
        if self._beside is not None:
            return self_drafting(self._beside.engine, method)
        if self._target is None:
            self._target = self_drafting(_load(self._settings, name), method)
        return self._target

    def formed(self, drafter: _Formed, engine: Engine) -> _Formed:
        """The same, told what compiles the response formats of its sessions.

        Made before anything is served: no other thread goes on meanwhile.
        """
        from services.engine.structure import structures_of

        if self._beside is not None:
            drafter.structures = self._beside.structures
            return drafter
        if engine not in self._structures:
            self._structures[engine] = structures_of(engine, self._vetting)
        drafter.structures = self._structures[engine]
        return drafter

    def borrowing(self) -> Borrowing | None:
        """The loans of one method; None without a verifier in this process."""
        if self._beside is None:
            return None
        from services.drafter.methods.self_draft.borrowing import Borrowing

        return Borrowing(self._beside.lending, self.target(""))


def _growth(settings: DrafterSettings) -> Callable[[], GrowthPlan]:
    """What makes trees as large as pays, for the costs of the settings."""
    from services.drafter.methods.graph.tree_growth import MeasuredGrowth, TreeCosts

    costs = TreeCosts(
        settings.tree_node_cost, settings.tree_level_cost, settings.tree_nodes, settings.tree_depth
    )
    return lambda: MeasuredGrowth(costs)


def _model(settings: DrafterSettings, engines: Engines) -> Drafter:
    from services.drafter.methods.model.model import ModelDrafter

    return engines.formed(ModelDrafter(engines.draft, **_drafting(settings)), engines.draft)


def _eagle(settings: DrafterSettings, engines: Engines) -> Drafter:
    from services.drafter.methods.eagle.eagle import EagleDrafter

    drafter = EagleDrafter(engines.head, least=settings.head_chance, **_drafting(settings))
    return engines.formed(drafter, engines.head)


def _text(settings: DrafterSettings, engines: Engines) -> Drafter:
    from services.drafter.methods.text.text import TextDrafter
    from services.engine.checkpoint.bundle import bundle_of

    target = bundle_of(settings.target or "")
    return TextDrafter(engines.draft, target, step_tokens=settings.step_tokens)


def _drafting(settings: DrafterSettings) -> dict[str, Any]:
    """How a draft model, or a head, drafts."""
    return {
        "step_tokens": settings.step_tokens,
        "q_top": settings.q_top,
        "trees": _growth(settings) if settings.tree == "measured" else None,
    }


def _graph(settings: DrafterSettings, engines: Engines) -> Drafter:
    from services.drafter.methods.graph.draft_graph import GraphRules
    from services.drafter.methods.graph.graph import GraphDrafter

    rules = GraphRules(
        max_nodes=settings.graph_nodes,
        sibling_share=settings.graph_sibling_share,
        leaf_weight=settings.graph_leaf_weight,
        repeat=settings.graph_repeat if settings.graph_repeat >= 0 else None,
    )
    drafter = GraphDrafter(
        engines.draft, rules, plan=_growth(settings), step_tokens=settings.step_tokens
    )
    return engines.formed(drafter, engines.draft)


def _skip(settings: DrafterSettings, engines: Engines) -> Drafter:
    from services.drafter.methods.self_draft.exits import Exit
    from services.drafter.methods.self_draft.mask_search import MaskSearch, SearchRules
    from services.drafter.methods.self_draft.skip import SkipDrafter
    from services.engine.skip_mask import every_second
    from services.engine.skip_mask_file import mask_for

    file, target = settings.skip_mask, settings.target or ""
    mask = None if file is None else mask_for(file, target, settings.cache_dir)
    engine = engines.target(target)
    if mask is None:
        mask = every_second(engine.num_layers)
        better = "`paceline train skip-mask` finds a better set"
        _log.warning("skip leaves out every second layer; %s", better)
    drafter = SkipDrafter(
        engine,
        mask,
        Exit(settings.skip_threshold, settings.skip_adaptive),
        step_tokens=settings.step_tokens,
        q_top=settings.q_top,
        borrowing=engines.borrowing(),
        search=MaskSearch(mask, SearchRules(settings.skip_share)) if settings.skip_search else None,
    )
    return engines.formed(drafter, engine)


def _lookahead(settings: DrafterSettings, engines: Engines) -> Drafter:
    from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
    from services.engine.lookahead_file import lookahead_for

    name = settings.lookahead or ""
    lookahead, target = lookahead_for(name, settings.target, settings.cache_dir)
    engine = engines.target(target)
    engine.give_soft_tokens(lookahead.embeddings)
    drafter = LookaheadDrafter(
        engine,
        step_tokens=settings.step_tokens,
        q_top=settings.q_top,
        borrowing=engines.borrowing(),
        riding=settings.lookahead_riding,
    )
    return engines.formed(drafter, engine)


def _load(
    settings: DrafterSettings, model: str, base: str | None = None, *, drafts: bool = False
) -> Engine:
    """`drafts`: a draft model; else the target, whose K/V may be its verifier's."""
    from services.engine import start

    return start.load(_spec(settings, model, base, drafts=drafts))


def _spec(
    settings: DrafterSettings, model: str, base: str | None = None, *, drafts: bool = False
) -> ModelSpec:
    from services.engine.spec import ModelSpec

    threads = settings.threads or len(settings.cpus) or None
    return ModelSpec(
        model=model,
        dtype=_dtype(settings, drafts=drafts),
        device=settings.device,
        threads=threads,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        max_context=settings.max_context,
        cache_dir=settings.cache_dir,
        base=base,
        engine=settings.engine,
        memory_share=settings.memory_share,
        execution=settings.execution,
        judged=drafts,
    )


def _dtype(settings: DrafterSettings, *, drafts: bool) -> str:
    """The number format asked for, or the fastest."""
    if settings.dtype != "auto":
        return settings.dtype
    # vLLM's products of quantized models take 16 bits alone on some CPUs.
    if settings.device != "cpu" or settings.engine == "vllm":
        return "bfloat16"
    from services.engine import number_formats

    return "int8" if drafts and number_formats.cpu().int8 else "float32"


def _ngram(settings: DrafterSettings, _: Engines) -> Drafter:
    from services.drafter.methods.ngram.chains import ChainLengths
    from services.drafter.methods.ngram.ngram import NgramDrafter
    from services.drafter.methods.ngram.small_tree import SmallTrees
    from services.drafter.methods.ngram.text_pool import PoolLimits, TextPool
    from services.engine.ngram_file import NO_FILE, load_ngrams, ngrams_path

    given = settings.ngrams not in (None, NO_FILE)
    file = load_ngrams(ngrams_path(settings.ngrams or "")) if given else None
    texts = TextPool(PoolLimits(settings.phrases_per_tenant, settings.phrases))
    small = SmallTrees(file, texts, settings.ngram_nodes)
    lengths = ChainLengths(settings.ngram_min, settings.ngram_max, settings.phrase_length)
    return NgramDrafter(lengths, _archive(settings), small)


def _archive(settings: DrafterSettings) -> Archive | None:
    if settings.phrase_redis is None:
        return None
    from services.drafter.methods.ngram.archive import RedisArchive

    return RedisArchive(settings.phrase_redis, ttl_s=settings.phrase_ttl)


METHODS: Mapping[str, Callable[[DrafterSettings, Engines], Drafter]] = {
    "model": _model,
    "eagle": _eagle,
    "skip": _skip,
    "lookahead": _lookahead,
    "graph": _graph,
    "text": _text,
    "ngram": _ngram,
}


def build(settings: DrafterSettings, beside: Beside | None = None) -> dict[str, Drafter]:
    """The methods that the settings ask for, by name; the first is the default.

    `beside`: the verifier whose process this is; left out: a process of its own.
    Raises `StartError` for an unknown method, or a model that does not load.
    """
    names = settings.method_names
    for name in names:
        if name not in METHODS:
            raise StartError(f"method: {name!r} is unknown; there is {', '.join(METHODS)}")
    engines = Engines(settings, beside)
    drafters = {name: METHODS[name](settings, engines) for name in names}
    return drafters | _informed(settings, drafters)


def _informed(settings: DrafterSettings, drafters: Mapping[str, Drafter]) -> dict[str, Drafter]:
    """N-grams with a draft model or a head as one of their sources, where there are both."""
    if "ngram" not in drafters or drafters.keys().isdisjoint(("model", "eagle")):
        return {}
    from services.drafter.methods.model.ahead import AheadRules
    from services.drafter.methods.model.informed import InformedDrafter
    from services.drafter.methods.model.model import ModelDrafter
    from services.drafter.methods.ngram.ngram import NgramDrafter

    name = "eagle" if "eagle" in drafters else "model"
    ngram, model = drafters["ngram"], drafters[name]
    assert isinstance(ngram, NgramDrafter)
    assert isinstance(model, ModelDrafter)
    awaited = settings.head_steps if name == "eagle" else 0
    rules = AheadRules(settings.ahead_rows, awaited=awaited)
    both = InformedDrafter(ngram, model, rules, settings.lengthen, name=name)
    return {f"ngram,{name}": both}
