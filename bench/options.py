"""What a bench measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.peers.options import PeerOptions
from bench.prompts import SPEC_BENCH
from orchestrator.core.pacing import DEFAULT_POLICY, POLICIES
from services.cluster.cores import CorePlan
from services.cluster.specs import ClusterOptions
from services.cluster.tether import available_cores
from services.contract.errors import StartError

PACINGS = POLICIES
RULES = ("standard", "block", "coupled")
METHODS = ("ngram", "model", "skip", "lookahead", "graph")
PLAIN = "plain"
PLAIN_ALL = "plain, all cores"
PLACES = {"verifier": False, "pool": True}
NO_DRAFTS: Mapping[str, Any] = {"disable_speculative_decoding": True}
FIXED = "fixed"
FIXED_TOKENS = 5
MOST_AT_A_TIME = 64


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure.

    `prompt_set`: all, stratified, or a number of prompts. `drafters`: one cluster each, of
    methods joined by +, behind which @verifier says that they draft in the verifiers'
    processes, @pool in their own; empty: one cluster, drafting as `method` says. Methods need
    what they need of `draft`, `lookahead` and `skip_mask`. `rejection_sample_methods` None: the
    server's own choice, at every pacing of `pacings` (None: all). Several are told apart
    at the asynchronous pacing, unless `pacings` says otherwise. `fixed_tokens`: drafts of
    `fixed`, one configuration each; empty: `num_speculative_tokens`, else 5. `concurrency`:
    prompts at a time, one level each. `seen_before`: every prompt has been answered once, in the
    one scope of all, before it is measured; else each trial has a scope of its own. `resume`:
    where every trial is noted as it ends, and what was noted there before is not measured
    again. `out` None: a file in bench/results. `summary`: a second file, without the trials.
    """

    target: str
    draft: str | None = None
    lookahead: str | None = None
    skip_mask: Path | None = None
    method: str = ""
    drafters: tuple[str, ...] = ()
    pool: bool | None = None
    dtype: str = "float32"
    draft_dtype: str | None = None
    prompts: Path = SPEC_BENCH
    prompt_set: str = "6"
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 1
    pacings: tuple[str, ...] | None = None
    rejection_sample_methods: tuple[str, ...] | None = None
    num_candidates: int = 1
    num_speculative_tokens: int | None = None
    fixed_tokens: tuple[int, ...] = ()
    repeats: int = 3
    concurrency: tuple[int, ...] = (1,)
    peers: PeerOptions = field(default_factory=PeerOptions)
    seen_before: bool = False
    resume: Path | None = None
    out: Path | None = None
    summary: Path | None = None

    def check(self) -> None:
        """Raises StartError naming the flag of what is not known or not possible."""
        _check("--pacings", self.pacings, PACINGS)
        _check("--rejection-sample-methods", self.rejection_sample_methods, RULES)
        for drafter in self.drafters:
            self._check_drafter(drafter)
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
        if "lookahead" in methods and self.lookahead is None:
            raise StartError(f"--drafters: {drafter} needs --lookahead")

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
        return ClusterOptions(
            target=self.target,
            draft=self.draft if drafts else None,
            lookahead=self.lookahead if not drafter or "lookahead" in methods else None,
            skip_mask=self.skip_mask,
            method=",".join(methods) if drafter else self.method,
            pool=PLACES[place[0]] if place else self.pool,
            dtype=self.dtype,
            draft_dtype=self.draft_dtype,
            pacings=self.served_pacings,
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
        """Whether drafts change no token: float32, and greedy or coupled.

        With a seed, as here, the server's own choice is coupled.
        """
        return self.dtype == "float32" and (self.temperature == 0 or rule in ("", "coupled"))


def _run_a_draft(methods: Collection[str]) -> bool:
    """Whether one of these methods runs the draft model."""
    return not {"model", "graph"}.isdisjoint(methods)


def _split_drafter(drafter: str) -> tuple[list[str], list[str]]:
    """Its methods, and the place where they draft, if it says one."""
    methods, *place = drafter.split("@", 1)
    return methods.split("+"), place


def _check(flag: str, given: Sequence[str] | None, allowed: Collection[str]) -> None:
    for name in given or ():
        if name not in allowed:
            raise StartError(f"{flag}: {name!r} is not one of {', '.join(allowed)}")


def read_options(given: Mapping[str, Any]) -> BenchOptions:
    """The options of a command line, whose lists are words joined by commas.

    Raises StartError for a number that is none.
    """
    values = dict(given)
    for name in ("synthetic", "trace", "delay_ms"):
        del values[name]
    for name in ("pacings", "rejection_sample_methods"):
        values[name] = words(values[name]) or None
    for name in ("concurrency", "fixed_tokens"):
        values[name] = numbers(f"--{name.replace('_', '-')}", values[name])
    values["drafters"] = words(values["drafters"])
    values["peers"] = PeerOptions(
        names=words(values["peers"]),
        places=words(values.pop("peer_cores")),
        dtype=values.pop("peer_dtype"),
        vllm_python=values.pop("vllm_python"),
        llama_server=values.pop("llama_server"),
    )
    return BenchOptions(**{name: value for name, value in values.items() if value is not None})


def words(text: str) -> tuple[str, ...]:
    """What commas join."""
    return tuple(one.strip() for one in text.split(",") if one.strip())


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers that commas join. Raises StartError naming the flag."""
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise StartError(f"{flag}: {text!r} is not a list of whole numbers") from None
