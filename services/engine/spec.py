"""What an engine is asked to load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

INT8 = "int8"
ENGINES = ("native", "vllm")
Execution = Literal["eager", "compiled", "piecewise", "full"]
"""How vLLM runs a model: as it is, compiled, and replayed from CUDA graphs between layers or whole.
"""
GRAPHS: tuple[Execution, ...] = ("piecewise", "full")
DTYPES = ("float32", "bfloat16", "float16", INT8)
DEFAULT_CACHE_DIR = Path("~/.cache/paceline")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and how to run it.

    `dtype`: `int8` rounds weights, on CPUs. `judged`: what the model says is judged by a target,
    so `int8` may round what weights are multiplied with, too. `model`: a Hugging Face id, a folder
    with safetensors, a `.gguf` file, the folder of a head, or a name of `files`. `base`: the target
    of a head, where that is not found by the name the head gives. `kv_capacity_tokens` None: what a
    cautious share of the free memory holds. `cache_dir`: where digests are kept, and weights that
    were converted.
    `tensor_parallel`: over how many processes vLLM splits it.
    `differentiable`: gradients are to go through it, which is slower. `engine`: what computes,
    one of `ENGINES`. `memory_share`: of the device's memory, what an engine may take that takes
    its share at the start; None: as it likes. `execution`: how vLLM runs it.
    `batch_invariant`: the bits of a row of logits must not depend on the rows beside it; None:
    where a CPU computes rows in float32 they do not, if the model allows it.
    """

    model: str
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    kv_capacity_tokens: int | None = None
    max_context: int | None = None
    cache_dir: Path | None = None
    base: str | None = None
    tensor_parallel: int = 1
    differentiable: bool = False
    engine: str = "native"
    memory_share: float | None = None
    execution: Execution = "eager"
    batch_invariant: bool | None = False
    judged: bool = False
