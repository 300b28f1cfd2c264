"""What processes make a local cluster, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from services.cluster.cores import CorePlan, plan_cores
from services.cluster.models import DEMO_MODEL, ngrams_for
from services.cluster.supervisor import START_TIMEOUT_S, ProcessSpec
from services.contract.errors import StartError
from services.contract.types import split_methods
from services.engine.checkpoint.heads import is_head
from services.engine.start import AUTO, chosen_format
from services.engine.synthetic.spec import read_spec
from services.runtime.options import Words, option, options

SHARES = {"verifier": 0.6, "drafter": 0.25}
"""Of a GPU's memory, where vLLM runs both roles on it."""
Dtype = Literal["auto", "float32", "bfloat16"]
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
        "Number format of the models; auto: the faster one here.", "float32", variable=True
    )
    batch_invariant: bool | None = option(
        "Let the logits of a text depend on that text alone, to the bit, whatever runs beside it: "
        "equal texts in bfloat16, too, a little slower. Left out: in float32 on a CPU.",
        None,
        variable=True,
    )
    draft_dtype: Literal["auto", "float32", "bfloat16", "int8"] | None = option(
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
        return chosen_format(self.dtype, device)

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
    ones.
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
    def ngram_flags(self) -> list[str]:
        """The n-gram file of a drafter, where one of its methods reads it."""
        file = ngrams_for(self.target, self.ngrams)
        return ["--ngrams", file] if self.drafts_with_ngrams and file is not None else []

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


def drafts(options: ClusterOptions, worker: ProcessSpec) -> bool:
    """Whether a worker of such a cluster serves as a drafter, be it beside verifying."""
    return options.beside or worker.name.startswith("drafter")


def orchestrator_specs(options: ClusterOptions, site: Site) -> list[ProcessSpec]:
    """The orchestrators; they find the workers in the store's registry."""
    ports = (options.port,) + (0,) * (len(options.pacings) - 1)
    return [
        _orchestrator(options, site, pacing, port)
        for pacing, port in zip(options.pacings, ports, strict=True)
    ]


def _orchestrator(options: ClusterOptions, site: Site, pacing: str, port: int) -> ProcessSpec:
    name = "orchestrator" if len(options.pacings) == 1 else f"orchestrator-{pacing}"
    arguments = ["--host", options.host, "--port", str(port)]
    # Started with the workers, it waits as long for them as whoever started it.
    arguments += ["--start-timeout", str(START_TIMEOUT_S)]
    if pacing:
        arguments += ["--pacing", pacing]
    arguments.append("--vllm-engine" if options.vllm_engine else "--no-vllm-engine")
    return _spec(site, "orchestrator", name, arguments)


def _verifier(options: ClusterOptions, site: Site, index: int, cores: Sequence[int]) -> ProcessSpec:
    name = f"verifier-{index}"
    arguments = ["--worker-id", name, "--port", "0"]
    if options.synthetic is not None:
        return _spec(site, "verifier", name, [*arguments, *_synthetic_flags(options.synthetic)])
    arguments += ["--target", options.target, "--dtype", options.number_format_told]
    arguments += _engine_flags(options.engine, options.execution)
    invariant = {None: [], True: ["--batch-invariant"], False: ["--no-batch-invariant"]}
    arguments += invariant[options.batch_invariant]
    arguments += _device_flags(options, "verifier", index)
    if options.beside:
        arguments += ["--drafting", _method_beside(options), *_target_flags(options)]
        arguments += options.ngram_flags
        if options.drafts_with_a_head:
            arguments += ["--draft", options.draft or ""]
    split = options.tensor_parallel
    if split > 1:
        arguments += ["--tensor-parallel", str(split)]
    arguments += _thread_flags(cores, options.verifier_threads, options.pin, split)
    return _spec(site, "verifier", name, arguments)


def _method_beside(options: ClusterOptions) -> str:
    """What verifiers draft with."""
    if options.drafts_with_a_head:
        return options.method or "ngram,eagle"
    if options.draft is not None:
        return "ngram"
    return options.method or ("lookahead" if options.lookahead is not None else "ngram")


def _drafter(options: ClusterOptions, site: Site, index: int, cores: Sequence[int]) -> ProcessSpec:
    name = f"drafter-{index}"
    arguments = ["--worker-id", name, "--port", "0"]
    if options.method:
        arguments += ["--method", options.method]
    if options.synthetic is not None:
        return _spec(site, "drafter", name, [*arguments, *_synthetic_flags(options.synthetic)])
    # The target's name is given, so that what is for another target is refused at the start.
    engine = _engine_flags("native", "eager")
    if options.draft is not None:
        arguments += ["--draft", options.draft]
        if options.drafts_with_a_head:
            arguments += ["--draft-base", options.target]
        else:
            engine = _engine_flags(options.engine, options.execution)
    arguments += [*engine, *options.ngram_flags]
    if options.drafts_with_the_target:
        arguments += ["--target", options.target, *_target_flags(options)]
    elif "text" in split_methods(options.method):
        # For its tokenizer.
        arguments += ["--target", options.target]
    if options.drafts_with_a_model:
        arguments += _device_flags(options, "drafter", index)
        arguments += ["--dtype", options.dtype_of_drafters]
        arguments += _thread_flags(cores, options.drafter_threads, options.pin)
    return _spec(site, "drafter", name, arguments)


def _synthetic_flags(file: Path) -> list[str]:
    """A worker that sleeps needs no core of its own, and one thread for what it does beside."""
    return ["--synthetic", str(file.absolute()), "--threads", "1"]


def _target_flags(options: ClusterOptions) -> list[str]:
    """What a target needs to draft."""
    mask = ["--skip-mask", str(options.skip_mask)] if options.skip_mask is not None else []
    return [*mask, *(["--lookahead", options.lookahead] if options.lookahead is not None else [])]


def _engine_flags(engine: str, execution: str) -> list[str]:
    """Both are always given: no worker is to take one of them from its environment."""
    return ["--engine", engine, "--execution", execution]


def _device_flags(options: ClusterOptions, role: str, index: int) -> list[str]:
    """The device of a worker, and its share of the memory where both roles are on one."""
    own, other = options.verifier_device, options.drafter_device
    if role == "drafter":
        own, other = other, own
    if not own:
        return []
    device = own[(index - 1) % len(own)]
    flags = ["--device", device]
    if options.engine == "vllm" and device != "cpu" and device in other:
        flags += ["--memory-share", str(SHARES[role])]
    return flags


def _thread_flags(
    cores: Sequence[int], threads: int | None, pin: bool, split: int = 1
) -> list[str]:
    """One thread per core, on those cores; a number of threads asked for goes unpinned.

    `split`: processes that share the cores, each with so many threads.
    """
    if threads is not None:
        return ["--threads", str(threads)]
    pinned = ["--cpus", ",".join(str(core) for core in cores)] if pin else []
    return ["--threads", str(max(1, len(cores) // split)), *pinned]


def _spec(site: Site, role: str, name: str, arguments: Sequence[str]) -> ProcessSpec:
    ready = site.folder / f"{name}.ready"
    common = ["--ready-file", str(ready), "--tether", str(site.owner)]
    # A URL that names a user is not for those who can list processes.
    secret = {"PACELINE_REDIS": site.redis} if "@" in site.redis else {}
    common += [] if secret else ["--redis", site.redis]
    return ProcessSpec(
        name=name,
        # -P: a folder named like one of our packages must not be imported from here.
        argv=(sys.executable, "-P", "-m", "paceline", role, *arguments, *common),
        ready_file=ready,
        log_file=site.folder / f"{name}.log",
        environment=secret,
    )
