"""Names of drafting methods, and how each is made.

A factory imports its method when it is called: `ngram` loads neither torch nor
numpy. It hands the method its own few numbers, never the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from services.common.errors import StartError

if TYPE_CHECKING:
    from services.drafter.protocol import Drafter
    from services.drafter.settings import DrafterSettings


def _model(settings: DrafterSettings) -> Drafter:
    from services.common.engine import Engine, ModelSpec, pin
    from services.drafter.model import ModelDrafter

    threads = settings.threads or len(settings.cpus) or None
    pin(threads, settings.cpus)
    spec = ModelSpec(
        model=settings.draft or "",
        dtype=settings.dtype,
        device=settings.device,
        threads=threads,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        max_context=settings.max_context,
        cache_dir=settings.cache_dir,
        base=settings.draft_base,
    )
    engine = Engine.load(spec)
    return ModelDrafter(engine, step_tokens=settings.step_tokens, q_top=settings.q_top)


def _ngram(settings: DrafterSettings) -> Drafter:
    from services.drafter.ngram import NgramDrafter

    return NgramDrafter(settings.ngram_min, settings.ngram_max)


METHODS: Mapping[str, Callable[[DrafterSettings], Drafter]] = {"model": _model, "ngram": _ngram}


def build(settings: DrafterSettings) -> dict[str, Drafter]:
    """The methods that the settings ask for, by name; the first is the default.

    Raises `StartError` for an unknown method, or a model that does not load.
    """
    names = settings.method_names
    for name in names:
        if name not in METHODS:
            raise StartError(f"method: {name!r} is unknown; there is {', '.join(METHODS)}")
    return {name: METHODS[name](settings) for name in names}
