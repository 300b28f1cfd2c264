"""A verifier process that drafts, too: one copy of the weights, one cache of each text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from services.contract.errors import StartError
from services.contract.types import split_methods
from services.drafter.settings import NEED_DRAFT, DrafterSettings
from services.grammar.vetting import vetting_of
from services.runtime.options import Settings

if TYPE_CHECKING:
    from services.cluster.flags import Flags
    from services.verifier.settings import VerifierSettings

_SETTINGS = (
    "skip_mask",
    "skip_threshold",
    "skip_adaptive",
    "lookahead",
    "lookahead_riding",
    "step_tokens",
    "q_top",
    "max_window",
    "lengthen",
    "ngram_min",
    "ngram_max",
    "ngrams",
    "ngram_nodes",
    "draft",
    "head_steps",
    "head_chance",
    "head_floor",
    "ahead_rows",
)


class _Drafting(Settings):
    drafting: str = Field(
        "",
        title="drafting beside the verifier",
        description="drafting methods that this process serves, too, with its target and from its "
        "K/V or hidden states, joined by commas (skip, lookahead, ngram, eagle); left out: none",
    )


_FIELDS: dict[str, Any] = {
    name: (field.annotation, field)
    for name, field in DrafterSettings.model_fields.items()
    if name in _SETTINGS
}
BesideSettings = create_model("BesideSettings", __base__=_Drafting, **_FIELDS)
"""The drafter's settings that a verifier process has besides its own."""


def drafter_settings(flags: Flags, verifier: VerifierSettings) -> DrafterSettings | None:
    """The drafter that a verifier process is to serve; None = it serves none.

    Raises StartError for a value that is not allowed.
    """
    drafting = flags.read(BesideSettings).model_dump()["drafting"]
    if not drafting:
        return None
    if verifier.synthetic is not None:
        raise StartError("drafting: a synthetic verifier has no model to draft with")
    if verifier.tensor_parallel > 1:
        raise StartError("drafting: a target that is split over processes drafts for nobody")
    names = split_methods(drafting)
    for name in names:
        if name in NEED_DRAFT and name != "eagle":
            raise StartError(f"drafting: {name} runs a draft model, so in a process of its own")
    # A head's number format is its own: what it says is judged by the target.
    head = {"draft_base": verifier.target, "dtype": "auto"}
    return flags.read(
        DrafterSettings,
        method=drafting,
        target=verifier.target,
        worker_id=f"{verifier.worker_id}-drafter",
        **(head if "eagle" in names else {"draft": None, "draft_base": None}),
    )


def run(verifier: VerifierSettings, drafter: DrafterSettings) -> int:
    """Serve a verifier that drafts by itself, until SIGTERM or SIGINT.

    The exit status (1 = the engine failed). Raises `StartError` when it cannot start.
    """
    from services.contract.types import Role
    from services.drafter import main as drafting
    from services.drafter.registry import Beside, build
    from services.engine.lending import Lending
    from services.runtime.serving import Served
    from services.runtime.worker_main import run_worker, tracing
    from services.verifier import main as verifying

    with tracing(verifier, Role.VERIFIER) as tracer:

        def load() -> list[Served]:
            lending = Lending()
            beside = Beside(lambda: verifying.load_engine(verifier), lending, vetting_of(verifier))
            # The drafter first: its errors show before the weights are read.
            drafters, engine = build(drafter, beside), beside.engine
            times = verifying.step_times(verifier, engine)
            proposer = drafting.make_proposer(drafter, drafters, tracer)
            host = verifying.make_host(
                verifier, engine, times, tracer, lending, beside.structures, proposer
            )
            tracer.watch({"verifier": host.progress})
            return [verifying.serving(host, engine, times)]

        return run_worker(verifier, tracer, load)
