"""What processes make a local cluster, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from services.cluster.cores import CorePlan, plan_cores
from services.cluster.models import DEMO_MODEL, ngrams_for
from services.cluster.supervisor import START_TIMEOUT_S, ProcessSpec
from services.contract.errors import StartError
from services.contract.types import Role, split_methods
from services.engine.checkpoint.heads import is_head
from services.engine.start import AUTO, chosen_format
from services.engine.synthetic.spec import read_spec
from services.runtime.options import PREFIX, Words, option, options

SHARES = {"verifier": 0.6, "drafter": 0.25}
"""Of a GPU's memory, where vLLM runs both roles on it."""
Given = dict[str, Any]
"""Settings of a process by name; None: left out."""
Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
Target = Annotated[
    str,
    option(
        f"Target model: Hugging Face id, folder with safetensors, .gguf file, or {DEMO_MODEL}.",
        section="Models",
        variable=True,
    ),
]


@options
class Models:
    """What runs, and where drafts come from."""

    target: Target = ""
    draft: str | None = option(
        "Draft model, or folder of an EAGLE-3 head; left out: n-gram drafters.", None, variable=True
    )
    lookahead: str | None = option(
        "Look-ahead embeddings, with which the target itself drafts: a file of `train lookahead`, "
        "or smollm2-135m-instruct-lookahead.",
        None,
        variable=True,
    )
    skip_mask: Path | None = option(
        "File of `train skip-mask` for the method skip; left out: a guess.", None, variable=True
    )
    engine: Literal["native", "vllm"] = option(
        "What computes: vllm runs the models and number formats that vLLM does; a head runs on "
        "native.",
        "native",
        variable=True,
    )
    execution: Literal["eager", "compiled", "piecewise", "full"] = option(
        "With --engine vllm: models as they are, compiled (minutes at the start), or compiled and "
        "replayed from CUDA graphs, of the parts between attention or of all.",
        "eager",
        variable=True,
    )
    verifier_device: Words = option(
        "Where verifiers run, as cuda:0; of several, joined by commas, each takes the next.", ()
    )
    drafter_device: Words = option("The same of drafters that run a model.", ())
    dtype: Dtype = option(
        "Number format of the models; auto: the fastest one here.", "float32", variable=True
    )
    batch_invariant: bool | None = option(
        "Let the logits of a text depend on that text alone, to the bit, whatever runs beside it: "
        "equal texts in bfloat16, too, a little slower. Left out: in all others on a CPU.",
        None,
        variable=True,
    )
    draft_dtype: Dtype | None = option(
        "Number format of the draft model; left out: the fastest, on a CPU int8.",
        None,
        variable=True,
    )
    method: str = option(
        "Drafting methods, joined by commas (ngram, model, eagle, skip, lookahead, graph, text).",
        "",
        section="Drafting",
        variable=True,
    )
    pool: bool | None = option(
        "Let drafters be processes of their own (skip and lookahead with a copy of the target), "
        "or draft in the verifiers' (all but a draft model). Left out: a draft model and several "
        "drafters apart, everything else beside the verifiers, n-grams in both places where there "
        "is a draft model.",
        None,
        off="--beside",
        variable=True,
    )

    @property
    def number_format(self) -> str:
        """That of the targets: a cluster has one. Of `auto` on a CPU it takes seconds to tell."""
        device = next((one for one in self.verifier_device if one != "cpu"), "cpu")
        return chosen_format(self.dtype, device, self.engine)

    @property
    def equal_to_the_bit(self) -> bool:
        """Whether a text's logits depend on that text alone, where nobody says otherwise."""
        if self.number_format == "float32":
            return True
        alone = self.engine == "native" and all(one == "cpu" for one in self.verifier_device)
        return alone and self.number_format in ("float16", "int8")

    @property
    def number_format_told(self) -> str:
        """What verifiers are told: on CPUs each finds by itself what `auto` stands for."""
        alike = all(device == "cpu" for device in self.verifier_device)
        return AUTO if self.dtype == AUTO and alike else self.number_format


@options
class ClusterOptions(Models):
    """A whole cluster on one machine.

    Threads None: as many as the process has cores; else the process is not pinned. `spare_core`:
    verifiers leave the drafters' cores alone, even where no drafter runs a model. One orchestrator
    for each of `pacings` (empty: its default); the first listens on `port`, the others on free
    ones. `sections`: variables of each role's processes, for what nothing else says.
    """

    ngrams: str | None = option(
        "N-gram file of the target for the method ngram: a file of `train ngrams`; left out: the "
        f"one that comes with {DEMO_MODEL}; none: without.",
        None,
        variable=True,
    )
    verifiers: int = option("How many verifiers.", 1, section="Processes", ge=1)
    tensor_parallel: int = option(
        "With --engine vllm: processes that the model of each verifier is split over.",
        1,
        variable=True,
        ge=1,
    )
    drafters: int = option("How many drafters.", 1, ge=0)
    verifier_threads: int | None = option(
        "Threads of each of a verifier's processes; left out: its share of the cores.", None, ge=1
    )
    drafter_threads: int | None = option(
        "Threads of each drafter with a model; left out: one.", None, ge=1
    )
    pin: bool = option("Keep each model on cores of its own.", True)
    synthetic: Path | None = option("Run no model: a JSON file says how long forwards take.", None)
    host: str = option("Where to listen.", "127.0.0.1", section="Serving", variable=True)
    port: int = option("0 picks a free one.", 0, variable=True, ge=0, le=65535)
    redis: str | None = option("URL of a Redis; left out: one of its own.", None, variable=True)
    vllm_engine: bool = option(
        "Serve what gateways with an OpenAI API speak, too.", False, variable=True
    )
    sections: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    spare_core: bool = False
    pacings: tuple[str, ...] = ("",)

    def check(self) -> None:
        """Raise StartError if the model is missing, or given twice."""
        if self.synthetic is None:
            if not self.target:
                raise StartError("--target is needed (or PACELINE_TARGET), or --synthetic")
            if self.tensor_parallel > 1 and any(":" in one for one in self.verifier_device):
                raise StartError("--verifier-device: ranks take devices by themselves; give cuda")
            if self.tensor_parallel > 1 and self.engine != "vllm":
                raise StartError("--tensor-parallel: only --engine vllm splits a model")
            if self.execution != "eager" and self.engine != "vllm":
                raise StartError("--execution: only --engine vllm has others than eager")
            if self.engine != "native" and self.drafts_with_the_target:
                raise StartError("--engine: skip and lookahead draft on the native engine alone")
            return
        given = {"--target": self.target, "--draft": self.draft, "--lookahead": self.lookahead}
        for flag, value in given.items():
            if value:
                raise StartError(f"{flag}: {value} is given, and --synthetic runs no model")
        if self.batch_invariant:
            raise StartError("--batch-invariant: --synthetic runs no model")
        read_spec(self.synthetic)

    @property
    def drafts_with_a_model(self) -> bool:
        """Whether drafters run a model, and so need a core of their own."""
        return self.draft is not None or self.drafts_with_the_target

    @property
    def drafts_with_a_head(self) -> bool:
        """Whether the draft model is a head on the target's hidden states."""
        return is_head(self.draft)

    @property
    def dtype_of_drafters(self) -> str:
        """Their number format: what was asked for, of a target as the verifiers have it."""
        return self.draft_dtype or (self.number_format if self.drafts_with_the_target else "auto")

    @property
    def drafts_with_the_target(self) -> bool:
        """Whether the target drafts."""
        return self.lookahead is not None or runs_the_target(self.method)

    @property
    def ngram_file(self) -> str | None:
        """The n-gram file of a drafter, where one of its methods reads it."""
        return ngrams_for(self.target, self.ngrams) if self.drafts_with_ngrams else None

    @property
    def drafts_with_ngrams(self) -> bool:
        """Whether n-grams are one of the methods."""
        default = ("ngram",) if self.draft is not None or self.lookahead is None else ()
        return "ngram" in (split_methods(self.method) or default)

    @property
    def beside(self) -> bool:
        """Whether verifiers draft, too.

        Methods that draft with the target share its weights and K/V there. N-grams then draft on
        the verdict itself, without a message to another process, and leave the verifier its
        cores meanwhile: measured, docs/drafters.md. Several drafters are processes of their own.
        With a draft model n-grams draft in both places: sessions take the faster one. A head
        drafts beside the states that it needs.
        """
        if self.pool or self.synthetic is not None:
            return False
        methods, whole = set(split_methods(self.method)), self.tensor_parallel == 1
        if self.drafts_with_a_head:
            return whole
        if self.draft is not None:
            return self.drafts_with_ngrams and methods <= {"ngram", "model"} and whole
        alone = methods <= {"ngram"} and self.drafters == 1 and whole
        return self.drafts_with_the_target or self.pool is False or alone

    @property
    def apart(self) -> bool:
        """Whether drafters are processes of their own."""
        if self.drafts_with_a_head:
            return not self.beside
        return self.draft is not None or not self.beside

    @property
    def share_a_device(self) -> bool:
        """Whether both roles' models are vLLM's on one device, of which each takes its share."""
        shared = {*self.verifier_device} & {*self.drafter_device} - {"cpu"}
        return self.engine == "vllm" and self.drafts_with_a_model and bool(shared)

    def core_plan(self, cores: Sequence[int]) -> CorePlan:
        """Who runs on which of these cores."""
        apart = self.spare_core or (self.drafts_with_a_model and self.apart)
        return plan_cores(cores, self.verifiers, self.drafters if apart else 0)


def runs_the_target(method: str) -> bool:
    """Whether one of these drafting methods, joined by commas, drafts with the target."""
    return not {"skip", "lookahead"}.isdisjoint(split_methods(method))


@dataclass(frozen=True, slots=True)
class Site:
    """Where the processes of a cluster run: who owns them, their folder, store and cores."""

    owner: int
    folder: Path
    redis: str
    cores: tuple[int, ...]


def worker_specs(options: ClusterOptions, site: Site) -> list[ProcessSpec]:
    """The verifiers and drafters."""
    plan = options.core_plan(site.cores)
    verifiers = [
        _verifier(options, site, index, cores) for index, cores in enumerate(plan.verifiers, 1)
    ]
    if not options.apart:
        return verifiers
    homes = plan.drafters or ((),) * options.drafters
    drafters = [_drafter(options, site, index, cores) for index, cores in enumerate(homes, 1)]
    return verifiers + drafters


def role_of(worker: ProcessSpec) -> Role:
    """What it serves as; one that drafts beside verifying is a verifier."""
    return Role.DRAFTER if worker.name.startswith("drafter") else Role.VERIFIER


def orchestrator_specs(options: ClusterOptions, site: Site) -> list[ProcessSpec]:
    """The orchestrators; they find the workers in the store's registry."""
    ports = (options.port,) + (0,) * (len(options.pacings) - 1)
    return [
        _orchestrator(options, site, pacing, port)
        for pacing, port in zip(options.pacings, ports, strict=True)
    ]


def _orchestrator(options: ClusterOptions, site: Site, pacing: str, port: int) -> ProcessSpec:
    name = "orchestrator" if len(options.pacings) == 1 else f"orchestrator-{pacing}"
    given = _of(options, "host", "vllm_engine") | {"port": port, "pacing": pacing or None}
    # Started with the workers, it waits as long for them as whoever started it.
    given["start_timeout"] = START_TIMEOUT_S
    return _spec(options, site, name, given)


def _verifier(options: ClusterOptions, site: Site, index: int, cores: Sequence[int]) -> ProcessSpec:
    name = f"verifier-{index}"
    if options.synthetic is not None:
        return _worker(options, site, name, _sleeping(options.synthetic))
    split = options.tensor_parallel
    given = _of(options, "target", "engine", "execution", "batch_invariant", "tensor_parallel")
    given |= {"dtype": options.number_format_told, **_device(options, "verifier", index)}
    given |= _threads(cores, options.verifier_threads, options.pin, split)
    if options.beside:
        given |= {"drafting": _method_beside(options), "ngrams": options.ngram_file}
        given |= _of(options, "skip_mask", "lookahead")
        given |= _of(options, "draft") if options.drafts_with_a_head else {}
    return _worker(options, site, name, given)


def _method_beside(options: ClusterOptions) -> str:
    """What verifiers draft with."""
    if options.drafts_with_a_head:
        return options.method or "ngram,eagle"
    if options.draft is not None:
        return "ngram"
    return options.method or ("lookahead" if options.lookahead is not None else "ngram")


def _drafter(options: ClusterOptions, site: Site, index: int, cores: Sequence[int]) -> ProcessSpec:
    name, given = f"drafter-{index}", {"method": options.method or None}
    if options.synthetic is not None:
        return _worker(options, site, name, given | _sleeping(options.synthetic))
    given |= {**_of(options, "draft"), "ngrams": options.ngram_file}
    given |= {"engine": "native", "execution": "eager"}
    if options.drafts_with_a_head:
        # The target's name is given, so that what is for another target is refused at the start.
        given["draft_base"] = options.target
    elif options.draft is not None:
        given |= _of(options, "engine", "execution")
    if options.drafts_with_the_target:
        given |= _of(options, "target", "skip_mask", "lookahead")
    elif "text" in split_methods(options.method):
        # For its tokenizer.
        given |= _of(options, "target")
    if options.drafts_with_a_model:
        given |= {"dtype": options.dtype_of_drafters, **_device(options, "drafter", index)}
        given |= _threads(cores, options.drafter_threads, options.pin)
    return _worker(options, site, name, given)


def _of(options: ClusterOptions, *names: str) -> Given:
    """Options that processes have by the same names."""
    return {name: getattr(options, name) for name in names}


def _sleeping(file: Path) -> Given:
    """A worker that sleeps needs no core of its own, and one thread for what it does beside."""
    return {"synthetic": file.absolute(), "threads": 1}


def _device(options: ClusterOptions, role: str, index: int) -> Given:
    """The device of a worker, and its share of the memory where both roles are on one."""
    own, other = options.verifier_device, options.drafter_device
    if role == "drafter":
        own, other = other, own
    if not own:
        return {}
    device = own[(index - 1) % len(own)]
    shared = options.engine == "vllm" and device != "cpu" and device in other
    return {"device": device, "memory_share": SHARES[role] if shared else None}


def _threads(cores: Sequence[int], threads: int | None, pin: bool, split: int = 1) -> Given:
    """One thread per core, on those cores; a number of threads asked for goes unpinned.

    `split`: processes that share the cores, each with so many threads.
    """
    if threads is not None:
        return {"threads": threads}
    pinned = ",".join(str(core) for core in cores) if pin else None
    return {"threads": max(1, len(cores) // split), "cpus": pinned}


def _worker(options: ClusterOptions, site: Site, name: str, given: Given) -> ProcessSpec:
    return _spec(options, site, name, {"worker_id": name, "port": 0, **given})


def _spec(options: ClusterOptions, site: Site, name: str, given: Given) -> ProcessSpec:
    role, ready = name.partition("-")[0], site.folder / f"{name}.ready"
    given |= {"ready_file": ready, "tether": site.owner}
    # A URL that names a user is not for those who can list processes.
    secret = {"PACELINE_REDIS": site.redis} if "@" in site.redis else {}
    given |= {} if secret else {"redis": site.redis}
    settings = {setting: value for setting, value in given.items() if value is not None}
    return ProcessSpec(
        name=name,
        # -P: a folder named like one of our packages must not be imported from here.
        argv=(sys.executable, "-P", "-m", "paceline", role, *_flags(settings)),
        ready_file=ready,
        log_file=site.folder / f"{name}.log",
        environment=secret,
        defaults=_section(options, role, settings),
    )


def _flags(settings: Given) -> Iterator[str]:
    for setting, value in settings.items():
        flag = setting.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", str(value))


def _section(options: ClusterOptions, role: str, settings: Given) -> Mapping[str, str]:
    """What the file says of a process, that of drafters where one drafts, too, by variable.

    Raises StartError for one of `settings`, which it has as flags.
    """
    own = options.sections.get(role, {})
    for setting in settings:
        if PREFIX + setting.upper() in own:
            raise StartError(f"--config: [{role}] {setting}: paceline up sets it by itself")
    beside = options.sections.get("drafter")
    return {**_drafting(beside), **own} if beside and "drafting" in settings else own


def _drafting(section: Mapping[str, str]) -> dict[str, str]:
    """What of a drafter's settings says how it drafts, wherever it runs."""
    from services.drafter.settings import DrafterSettings
    from services.runtime.settings import WorkerSettings

    names = DrafterSettings.model_fields.keys() - WorkerSettings.model_fields.keys()
    return {name: section[name] for name in section.keys() & {PREFIX + n.upper() for n in names}}
