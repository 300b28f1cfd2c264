"""What a bench measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from bench.peers.options import PeerOptions
from orchestrator.session.options import DEFAULT_POLICY, POLICIES, policy_of
from services.cluster.cores import CorePlan
from services.cluster.models import DEMO_MODEL
from services.cluster.specs import ClusterOptions, Dtype, Models, Target
from services.contract.errors import StartError
from services.runtime.affinity import available_cores
from services.runtime.options import Numbers, Words, option, options

PACINGS = POLICIES
RULES = ("standard", "block", "coupled")
METHODS = ("ngram", "model", "eagle", "skip", "lookahead", "graph", "text")
PLAIN = "plain"
PLAIN_ALL = "plain, all cores"
PLACES = {"verifier": False, "pool": True}
NO_DRAFTS: Mapping[str, Any] = {"disable_speculative_decoding": True}
FIXED = "fixed"
FIXED_TOKENS = 5
MOST_AT_A_TIME = 64

Pacings = Annotated[Words, AfterValidator(lambda names: tuple(map(policy_of, names)))]


@options
class BenchOptions(Models):
    """What to measure.

    `drafters`: one cluster each, of methods joined by +, behind which @verifier says that they
    draft in the verifiers' processes, @pool in their own; empty: one cluster, drafting as
    `method` says. Methods need what they need of `draft`, `lookahead` and `skip_mask`. Several
    rules are told apart at the asynchronous pacing, unless `pacings` says otherwise.
    """

    target: Target = DEMO_MODEL
    draft: str | None = option("Draft model; left out: n-grams.", None)
    head: str | None = option(
        "Folder of an EAGLE-3 head, for the drafters of --drafters with eagle.", None
    )
    dtype: Dtype = option("Number format of the models; auto: the faster one here.", "auto")
    drafters: Words = option(
        "Drafters to compare, a cluster each: ngram, model, eagle, skip, lookahead, graph, "
        "text, or several joined by +.",
        "",
        section="What is compared",
    )
    pacings: Pacings = option(
        "Pacings of the orchestrator; left out: all, with rules adaptive.", ""
    )
    rejection_sample_methods: Words = option(
        "Rules to compare: standard, block, coupled; left out: AUTO.", ""
    )
    num_candidates: int = option("Draft tokens per place.", 1, ge=1)
    num_speculative_tokens: int | None = option(
        "Most tokens drafted ahead; left out: the server's.", None, ge=1
    )
    fixed_tokens: Numbers = option(
        "Draft tokens per round of the pacing fixed, a configuration each; left out: "
        "--num-speculative-tokens, else 5.",
        "",
    )
    prompts: Path | None = option(
        "JSON lines as Spec-Bench has them; left out: its own.", None, section="What is asked"
    )
    prompt_set: str = option(
        "Which of them: all, three of each category (always the same), or a number.",
        "6",
        flag="set",
        shown="all|stratified|N",
    )
    max_tokens: int = option("Most tokens of each answer.", 64, ge=1)
    temperature: float = option("0 = greedy.", 0.0, ge=0)
    top_p: float = option("Keep the likeliest tokens, up to this.", 1.0, ge=0, le=1)
    seed: int = option("Seed of the first repeat's answers.", 1, ge=0)
    repeats: int = option("How often each prompt is answered.", 3, ge=1)
    concurrency: Numbers = option(
        "Prompts at a time, 1 to 64, one table each; without a model 1 to 512, in one table.", "1"
    )
    seen_before: bool = option(
        "Measure text seen before: every prompt is answered once, all in one scope, before it "
        "counts. Left out: each trial finds nothing of those before it.",
        False,
    )
    peers: PeerOptions = Field(default_factory=PeerOptions)
    synthetic: str | None = option(
        "Run no model: plain_ms, verify_ms, draft_ms, agreement (0 to 1), on top row_ms, "
        "session_ms, overlap (of what both draw independently), or a file of them.",
        None,
        section="Without a model",
        shown="FILE|NAME=VALUE,..",
    )
    trace: str | None = option(
        "The same as a published trace has it: humaneval or refactorchat.", None
    )
    delay_ms: str = option(
        "Without a model: network delay each way, to verifier and drafter.",
        "0",
        shown="MS|ROLE=MS,..",
    )
    resume: Path | None = option(
        "File of every finished trial: a later run goes on from there.", None, section="Results"
    )
    out: Path | None = option("JSON file; left out: a new one in bench/results.", None)
    summary: Path | None = option(
        "A second one without the trials, small enough for docs/results.", None
    )

    def check(self) -> None:
        """Raises StartError naming the flag of what is not known or not possible."""
        _check("--pacings", self.pacings, PACINGS)
        _check("--rejection-sample-methods", self.rejection_sample_methods, RULES)
        for drafter in self.drafters:
            self._check_drafter(drafter)
        if self.head is not None and not any("eagle" in one for one in self.drafters):
            raise StartError("--head: none of --drafters names eagle, which drafts with it")
        if self.drafters and self.method:
            raise StartError("--drafters: not beside --method, which is one of them")
        if len(set(self.drafters)) < len(self.drafters):
            raise StartError("--drafters: one of them is named twice")
        possible = range(1, MOST_AT_A_TIME + 1)
        if not self.concurrency or not set(self.concurrency).issubset(possible):
            raise StartError(f"--concurrency: levels are from 1 to {MOST_AT_A_TIME}")
        if not all(tokens >= 1 for tokens in self.fixed_tokens):
            raise StartError("--fixed-tokens: at least 1 token")
        self.peers.check(self.draft)

    def _check_drafter(self, drafter: str) -> None:
        methods, place = _split_drafter(drafter)
        _check("--drafters", methods, METHODS)
        _check("--drafters", place, PLACES)
        runs_a_draft = _run_a_draft(methods)
        if runs_a_draft and place == ["verifier"]:
            raise StartError(f"--drafters: {drafter}: a draft model runs in a process of its own")
        if runs_a_draft and self.draft is None:
            raise StartError(f"--drafters: {drafter} needs --draft")
        if "eagle" in methods and self.head is None:
            raise StartError(f"--drafters: {drafter} needs --head")
        if "eagle" in methods and runs_a_draft:
            raise StartError(f"--drafters: {drafter}: a drafter runs a head or a draft model")
        if "lookahead" in methods and self.lookahead is None:
            raise StartError(f"--drafters: {drafter} needs --lookahead")

    @property
    def runs_no_model(self) -> bool:
        """Whether workers sleep for given times instead."""
        return self.synthetic is not None or self.trace is not None

    @property
    def cores(self) -> CorePlan:
        """The cores of verifier and drafter: the same in every cluster."""
        return next(iter(self.clusters.values())).core_plan(available_cores())

    @property
    def clusters(self) -> dict[str, ClusterOptions]:
        """What is served, by drafter (empty: the only one): one orchestrator for each pacing.

        Where one of several drafters needs a core, the others' verifiers leave it alone,
        too: then all verifiers have the same cores.
        """
        made = {one: self._cluster(one) for one in self.drafters or ("",)}
        apart = any(one.core_plan(available_cores()).drafters for one in made.values())
        return {name: replace(one, spare_core=apart) for name, one in made.items()}

    def _cluster(self, drafter: str) -> ClusterOptions:
        methods, place = _split_drafter(drafter)
        drafts = not drafter or _run_a_draft(methods)
        own = {
            "draft": self.head if "eagle" in methods else self.draft if drafts else None,
            "lookahead": self.lookahead if not drafter or "lookahead" in methods else None,
            "method": ",".join(methods) if drafter else self.method,
            "pool": PLACES[place[0]] if place else self.pool,
        }
        models = {one.name: getattr(self, one.name) for one in fields(Models)}
        return ClusterOptions(**models | own, pacings=self.served_pacings)

    @property
    def plain_all_cores(self) -> ClusterOptions | None:
        """What decodes without drafts on the cores of verifier and drafter together.

        None where rules are told apart by one another, where all cores are the verifier's
        already, and where no core computes.
        """
        on_cores = set(self.verifier_device) <= {"cpu"}
        if not (self.cores.drafters and on_cores) or self.rejection_sample_methods:
            return None
        return ClusterOptions(
            target=self.target,
            engine=self.engine,
            execution=self.execution,
            batch_invariant=self.batch_invariant,
            dtype=self.dtype,
            drafters=0,
        )

    @property
    def served_pacings(self) -> tuple[str, ...]:
        """One orchestrator each, in every cluster."""
        return self.pacings or ((DEFAULT_POLICY,) if self.rejection_sample_methods else PACINGS)

    @property
    def sampling(self) -> dict[str, Any]:
        """What every configuration is asked with."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }

    def speculation(self, rule: str, window: int | None = None) -> dict[str, Any]:
        """What drafting configurations are asked with beside; an empty `rule` is the server's."""
        given = {
            "rejection_sample_method": rule or None,
            "num_candidates": self.num_candidates if self.num_candidates > 1 else None,
            "num_speculative_tokens": window or self.num_speculative_tokens,
        }
        return {name: value for name, value in given.items() if value is not None}

    def windows(self, pacing: str) -> tuple[int | None, ...]:
        """Draft tokens of each round, one configuration each; None = what the server decides."""
        if pacing != FIXED:
            return (None,)
        return self.fixed_tokens or (self.num_speculative_tokens or FIXED_TOKENS,)

    def promises_equal_text(self, rule: str) -> bool:
        """Whether drafts change no token: where rows are float32, and greedy or coupled.

        With a seed, as here, the server's own choice is coupled.
        """
        return self.equal_to_the_bit and (self.temperature == 0 or rule in ("", "coupled"))


def _run_a_draft(methods: Collection[str]) -> bool:
    """Whether one of these methods runs the draft model."""
    return not {"model", "graph", "text"}.isdisjoint(methods)


def _split_drafter(drafter: str) -> tuple[list[str], list[str]]:
    """Its methods, and the place where they draft, if it says one."""
    methods, *place = drafter.split("@", 1)
    return methods.split("+"), place


def _check(flag: str, given: Sequence[str], allowed: Collection[str]) -> None:
    for name in given:
        if name not in allowed:
            raise StartError(f"{flag}: {name!r} is not one of {', '.join(allowed)}")
