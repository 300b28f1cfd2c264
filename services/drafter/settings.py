"""Settings of a drafter process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from services.contract.types import split_methods
from services.engine.checkpoint.heads import FLOOR, is_head
from services.runtime.settings import WorkerSettings

NEED_DRAFT = ("model", "graph", "text", "eagle")
"""Methods that run a draft model, or a head."""


class DrafterSettings(WorkerSettings):
    """Run one drafter: it proposes tokens for the verifier to check."""

    draft: str | None = Field(
        None,
        title="model and device",
        description="draft model of the methods `model`, `graph` and `text`: "
        "Hugging Face id, folder with safetensors, or .gguf file; of `eagle`: the folder of an "
        "EAGLE-3 head, or smollm2-135m-instruct-eagle",
    )
    draft_base: str | None = Field(
        None,
        description="target of a head, where that is not found by the name it had when the head "
        "was made",
    )
    target: str | None = Field(
        None,
        description="target model, for the methods `skip` and `lookahead`, which draft with it: as "
        "the verifiers have it; `lookahead` finds it by the name that its file gives, too; `text` "
        "reads its tokenizer alone",
    )
    method: str = Field(
        "",
        title="drafting",
        description="drafting methods, joined by commas, the default one first; "
        "left out: `ngram,model` with a draft model, `ngram,eagle` with a head, `lookahead` with "
        "look-ahead embeddings, else `ngram`",
    )
    max_window: int = Field(
        64, ge=1, description="most tokens drafted ahead of a session's committed text"
    )
    step_tokens: int = Field(
        512, ge=1, description="prompt tokens that one step takes in beside drafting"
    )
    q_top: int = Field(
        64,
        ge=1,
        le=1024,
        description="tokens that a draft law is cut to before it is drawn from and sent "
        "(standard and block verification)",
    )
    lengthen: int = Field(
        0,
        ge=0,
        description="places at the end of a window where methods named together draft in the "
        "opposite order: with method model,ngram a model's draft ends in a copy or a phrase",
    )
    ngrams: str | None = Field(
        None,
        title="n-grams",
        description="n-gram file of the target for `ngram`: what it says after a few tokens, a "
        "file that `paceline train ngrams` wrote, or smollm2-135m-instruct-ngrams",
    )
    ngram_nodes: int = Field(
        12,
        ge=1,
        le=64,
        description="most nodes of a tree of `ngram`; pacing sends as many of them as pay",
    )
    ngram_min: int = Field(
        1, ge=1, description="shortest n-gram that `ngram` looks up in the session's own text"
    )
    ngram_max: int = Field(4, ge=1, description="longest n-gram that `ngram` looks up")
    ahead_rows: int = Field(
        12,
        title="a draft model",
        ge=1,
        le=1024,
        description="most places that one step of the draft model goes to where `ngram,model` "
        "draft small trees together, of a quarter as many sessions",
    )
    head_steps: int = Field(
        2,
        ge=0,
        le=16,
        description="steps of a head that a tree of `ngram,eagle` waits for, the first of them at "
        "the text's end, each next one a level deeper",
    )
    head_chance: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="a draft of `eagle` ends before a token whose chance to stay is below this, by "
        "the head's own probabilities and what verdicts say of them, in greedy and coupled "
        "verification: about what a row costs, as a share of a verification; 0 = none does",
    )
    head_floor: float = Field(
        FLOOR,
        ge=0,
        lt=1,
        description="share of its target's own tokens that a head has to say at the start, beside "
        "its verifier, where that is measured under each reading that its layout leaves open; 0 = "
        "it is not measured",
    )
    tree: Literal["comb", "measured"] = Field(
        "measured",
        title="trees",
        description="trees of `model` in greedy and coupled verification: as pays most by what "
        "was accepted so far, or a chain with candidates beside it",
    )
    tree_nodes: int = Field(16, ge=1, le=256, description="most nodes of a tree")
    tree_depth: int = Field(8, ge=1, le=64, description="most levels of a tree")
    tree_level_cost: float = Field(
        0.2,
        ge=0,
        description="what a step of the draft model takes, as a share of a verification "
        "without draft tokens",
    )
    tree_node_cost: float = Field(
        0.02, ge=0, description="what each node of a tree adds to it, as a share, too"
    )
    graph_nodes: int = Field(
        64,
        title="draft graphs",
        ge=1,
        le=1024,
        description="most nodes of one draft graph of `graph`",
    )
    graph_sibling_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="a candidate is dropped below this share of the best beside it",
    )
    graph_leaf_weight: float = Field(
        0.05, ge=0, le=1, description="nothing is drafted after a candidate less likely than this"
    )
    graph_repeat: int = Field(
        1,
        ge=-1,
        le=8,
        description="tokens in front of two equal candidates that must be equal, too, for `graph` "
        "to draft what follows them once; -1: it never does",
    )
    phrase_length: int = Field(
        8,
        title="phrases",
        ge=1,
        le=64,
        description="most tokens that `ngram` copies of another text",
    )
    phrases_per_tenant: int = Field(
        32_768, ge=1, description="tokens of one tenant's outputs that `ngram` remembers"
    )
    phrases: int = Field(
        262_144,
        ge=1,
        description="tokens of all tenants' outputs that `ngram` remembers, ~0.2 KB each",
    )
    phrase_redis: str | None = Field(
        None,
        description="URL of a Redis where `ngram` keeps outputs (token ids, not of ephemeral "
        "sessions) for its next start; left out: phrases go with the process",
    )
    phrase_ttl: float = Field(
        86_400.0, gt=0, description="seconds that a tenant's outputs stay there after the last one"
    )
    skip_mask: Path | None = Field(
        None,
        title="layer skipping",
        description="file from `paceline train skip-mask`: the sub-layers that `skip` leaves out; "
        "left out: every second layer",
    )
    skip_threshold: float = Field(
        0.6,
        ge=0,
        le=1,
        description="a token less likely than this ends a draft of `skip`; 0 = none does",
    )
    skip_adaptive: bool = Field(
        True, description="let the threshold of `skip` follow the acceptance of each session"
    )
    skip_search: bool = Field(
        False,
        description="let `skip` look for a better set of sub-layers, on its sessions' texts, "
        "whenever no draft is owed",
    )
    skip_share: float = Field(
        0.45,
        gt=0,
        lt=1,
        description="share of the sub-layers between the first and the last layer that the sets "
        "it looks at leave out",
    )
    lookahead: str | None = Field(
        None,
        title="look-ahead",
        description="look-ahead embeddings of the method `lookahead`: a file that "
        "`paceline train lookahead` wrote, or smollm2-135m-instruct-lookahead",
    )
    lookahead_riding: bool = Field(
        True,
        description="beside its verifier, let `lookahead` draft on the verifier's forwards alone, "
        "and run none of its own",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = Field(
        "auto",
        description="number format of the model; auto: int8 of a draft model on a CPU that has it, "
        "as what it drafts is judged by the target, else float32, by vLLM and on a GPU bfloat16",
    )
    worker_id: str = Field(
        default_factory=lambda: f"drafter-{secrets.token_hex(4)}",
        min_length=1,
        description="name in the registry; left out: a random one",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min {self.ngram_min} is above ngram_max {self.ngram_max}")
        if self.lengthen and len(self.method_names) < 2:
            raise ValueError(f"lengthen: {self.lengthen} needs several methods, as model,ngram")
        if "ngram" not in self.method_names and self.phrase_redis is not None:
            raise ValueError(f"phrase_redis: given, but method {self.method} keeps no phrases")
        drafting = [name for name in self.method_names if name in NEED_DRAFT]
        if self.draft is not None and self.synthetic is not None:
            raise ValueError(f"synthetic: no model runs, and --draft {self.draft} is given")
        if self.engine != "native" and self.synthetic is not None:
            raise ValueError(f"engine: {self.engine} does not go with synthetic")
        self.check_engine()
        if self.draft is None and self.synthetic is None and drafting:
            raise ValueError(f"draft: the method {drafting[0]} needs a draft model")
        if self.draft is None and self.draft_base is not None:
            raise ValueError(f"draft_base: {self.draft_base} is given without a draft model")
        if self.draft is not None and not drafting:
            raise ValueError(f"draft: {self.draft} is given, but method {self.method} needs none")
        return self

    @model_validator(mode="after")
    def _drafts_with_the_target(self) -> Self:
        names = self.method_names
        if self.target is None and "skip" in names:
            raise ValueError("target: the method skip needs the target model")
        if self.skip_mask is not None and "skip" not in names:
            raise ValueError(f"skip_mask: {self.skip_mask} is given without the method skip")
        if self.skip_search and "skip" not in names:
            raise ValueError("skip_search: given without the method skip")
        if self.lookahead is None and "lookahead" in names:
            raise ValueError("lookahead: the method lookahead needs look-ahead embeddings")
        if self.lookahead is not None and "lookahead" not in names:
            raise ValueError(f"lookahead: {self.lookahead} is given, but no method needs it")
        return self

    @model_validator(mode="after")
    def _drafts_pass_as_text(self) -> Self:
        if "text" not in self.method_names:
            return self
        if self.target is None:
            raise ValueError("target: the method text needs the target model, for its tokenizer")
        if self.synthetic is not None:
            raise ValueError("synthetic: the method text needs a draft model with a tokenizer")
        others = {*NEED_DRAFT} & {*self.method_names} - {"text"}
        if others:
            raise ValueError(
                f"method: text drafts with another tokenizer than {others.pop()}; use two drafters"
            )
        return self

    @model_validator(mode="after")
    def _ngrams_have_their_method(self) -> Self:
        if self.ngrams is not None and "ngram" not in self.method_names:
            raise ValueError(f"ngrams: given, but method {self.method} looks nothing up in them")
        return self

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods to serve, the default one first."""
        names = tuple(filter(None, split_methods(self.method)))
        if names:
            return names
        model = "eagle" if is_head(self.draft) else "model"
        given = {"ngram": self.draft, model: self.draft or self.synthetic}
        given["lookahead"] = self.lookahead
        return tuple(name for name, value in given.items() if value is not None) or ("ngram",)
