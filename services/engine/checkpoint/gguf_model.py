"""GGUF files as transformers reads them, with a quicker reader and tensor by tensor.

What a file's settings mean, which tensor belongs where and what is done to it on the way is
transformers' own; only how its bytes are read is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.engine.checkpoint import gguf_tokenizer
from services.engine.checkpoint.codes import CODED, Codes, read_codes
from services.engine.checkpoint.gguf_counts import EMBEDDINGS, check_counts
from services.engine.checkpoint.gguf_file import GgufFile
from services.engine.checkpoint.gguf_file import Tensor as Place
from services.engine.checkpoint.gguf_parts import read_parts
from services.engine.checkpoint.gguf_rope import ROPE_TENSORS, rope_of
from services.engine.checkpoint.stored import StandIns

_AT_ONCE = 1 << 21
"""Numbers that are dequantized at once: they stay in a core's caches."""
_OUTPUT = "output.weight"
_NOT_SUPPORTED = "is not supported yet"
"""In what transformers raises for an architecture that its reader does not have."""
_ONE_BY_ONE = (
    *("TensorProcessor", "LlamaTensorProcessor", "Gemma2TensorProcessor"),
    *("NemotronTensorProcessor", "MambaTensorProcessor", "BloomTensorProcessor"),
)
"""What transformers does to tensors where each has one name, and needs no other."""
_Process = Callable[[NDArray[Any]], NDArray[Any]]


def read_model(file: Path, dtype: torch.dtype, stand_ins: StandIns | None = None) -> Any:
    """The causal language model in a file, with its weights or stand-ins for most of them.

    Returns it with transformers' report. Raises what transformers raises for a broken file.
    """
    from transformers import AutoModelForCausalLM, GgufConfig

    with _reading(file, stand_ins, dtype):
        return AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=dtype,
            output_loading_info=True,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="eager",
        )


def read_config(file: Path) -> Any:
    """The configuration in a file."""
    from transformers import AutoConfig

    with _reading(file):
        return AutoConfig.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
        )


def read_tokenizer(file: Path) -> Any:
    """The tokenizer in a file."""
    found = read_parts(file)
    check_counts(found)
    return gguf_tokenizer.read_tokenizer(found)


def read_embeddings(file: Path, dtype: torch.dtype) -> Tensor:
    """The embeddings in a file; ValueError where it has none, or is broken."""
    return _first(file, (EMBEDDINGS,), dtype)


def read_output(file: Path, dtype: torch.dtype) -> Tensor:
    """The output's matrix, which is that of the embeddings where a file has none of its own."""
    return _first(file, (_OUTPUT, EMBEDDINGS), dtype)


def _first(file: Path, names: Sequence[str], dtype: torch.dtype) -> Tensor:
    found = {place.name: place for place in read_parts(file, vocabulary=False).tensors}
    named = next((found[name] for name in names if name in found), None)
    if named is None or len(named.size) != 2:
        raise ValueError(f"its target has no tensor {names[-1]}")
    return GgufMatrix(named, None).read(dtype)


class GgufMatrix:
    """A matrix of a file; see `Stored`."""

    def __init__(self, place: Place, order: NDArray[np.int64] | None) -> None:
        """`order`: which row of the file each row is; None: the same."""
        self._place, self._order = place, order
        self._mapped: NDArray[Any] | None = None
        self.shape = (place.size[0], place.size[1])

    def read(self, dtype: torch.dtype, first: int = 0, last: int | None = None) -> Tensor:
        """See `Stored`."""
        if self._order is not None:
            return _numbers(self._place, self._blocks(first, last)).to(dtype)
        wanted = range(self.shape[0])[first:last]
        out = torch.empty((len(wanted), self.shape[1]), dtype=dtype)
        step = max(1, _AT_ONCE // max(1, self.shape[1]))

        def fill(start: int) -> None:
            those = wanted[start : start + step]
            part = self._place.part(those.start, those.stop)
            out[start : start + step] = _numbers(self._place, part).to(dtype)

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(fill, range(0, len(wanted), step)))
        return out

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Stored`."""
        if self._mapped is None:
            self._mapped = self._place.mapped()
        wanted = ids.numpy() if self._order is None else self._order[ids.numpy()]
        return _numbers(self._place, self._mapped[wanted]).to(dtype)

    def codes(self, first: int = 0, last: int | None = None) -> Codes | None:
        """See `Stored`."""
        kind = self._place.tensor_type.name
        return read_codes(self._blocks(first, last), kind) if kind in CODED else None

    def _blocks(self, first: int, last: int | None) -> NDArray[Any]:
        """Some rows in a row, as the file has them, read now."""
        if self._order is not None:
            return self._place.data[self._order[first:last]]
        wanted = range(self.shape[0])[first:last]
        return self._place.part(wanted.start, wanted.stop)


class _Lazy:
    """A tensor of a state dict, read when transformers comes to it."""

    def __init__(self, read: Callable[[], Tensor]) -> None:
        self._read = read

    def __getitem__(self, _: Any) -> Tensor:
        return self._read()

    def is_floating_point(self) -> bool:
        """It always is once it is dequantized."""
        return True


def _numbers(place: Place, data: NDArray[Any]) -> Tensor:
    from gguf import dequantize

    return torch.from_numpy(dequantize(np.ascontiguousarray(data), place.tensor_type))


@contextmanager
def _reading(
    file: Path,
    stand_ins: StandIns | None = None,
    dtype: torch.dtype = torch.float32,
) -> Iterator[None]:
    """Let transformers read a file so.

    By itself it parses the file several times, a vocabulary token by token, and has all tensors
    in memory at once.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as theirs
    from transformers.utils import logging

    logging.disable_progress_bar()
    load = theirs.load_gguf_checkpoint

    # Before theirs, which bounds nothing.
    whole = read_parts(file, vocabulary=False)
    check_counts(whole)
    _check_kinds(whole)
    settings, rope = cache(load), rope_of(whole)

    def loaded(
        path: str, return_tensors: bool = False, model_to_load: Any = None, **rest: Any
    ) -> dict[str, Any]:
        found = {name: dict(values) for name, values in settings(path).items()}
        found["config"] = {**rope, **found["config"]}
        if not return_tensors:
            return found
        tensors = _lazies(whole, found["config"], model_to_load, stand_ins, dtype)
        if tensors is None:
            return load(path, return_tensors=True, model_to_load=model_to_load, **rest)  # type: ignore[no-any-return]
        return {**found, "tensors": tensors}

    names = lru_cache(maxsize=1)(gguf.get_tensor_name_map)
    changes = {"GGUFReader": lambda _: whole, "get_tensor_name_map": names}
    with _changed(gguf, **changes), _changed(theirs, load_gguf_checkpoint=loaded):
        try:
            yield
        except ValueError as error:
            if _NOT_SUPPORTED not in str(error):
                raise
            raise ValueError(_of_others(whole.architecture)) from error


def _of_others(architecture: str) -> str:
    """Who reads a file that transformers does not."""
    import gguf

    known = architecture in gguf.MODEL_ARCH_NAMES.values()
    others = "llama.cpp does, or bring its safetensors" if known else "bring its safetensors"
    return f"transformers reads no GGUF files of {architecture}; {others}"


def _check_kinds(file: GgufFile) -> None:
    """Raise ValueError for numbers of which nobody here makes floats."""
    from gguf import GGML_QUANT_SIZES, dequantize

    for kind in {place.tensor_type for place in file.tensors if place.dtype == np.uint8}:
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise ValueError(
                f"weights of the kind {kind.name} are read by llama.cpp alone"
            ) from error


@contextmanager
def _changed(module: Any, **attributes: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _lazies(
    file: GgufFile,
    config: dict[str, Any],
    model: Any,
    stand_ins: StandIns | None,
    dtype: torch.dtype,
) -> dict[str, _Lazy] | None:
    """The tensors of a model by its own names; None where several make one, or one several."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    architecture = file.architecture
    processor = theirs.TENSOR_PROCESSORS.get(architecture, theirs.TensorProcessor)(config=config)
    if type(processor).__name__ not in _ONE_BY_ONE or any(len(t.size) > 2 for t in file.tensors):
        return None
    names = theirs.get_gguf_hf_weights_map(model, processor)
    _check_names(file, names, tied=config.get("tie_word_embeddings", False))
    found: dict[str, _Lazy] = {}
    for place in file.tensors:
        if place.name in names:
            process = partial(_processed, processor, place.name)
            name = names[place.name]
            found[name] = _Lazy(partial(_read, place, process, stand_ins, dtype, name))
    return found


def _check_names(file: GgufFile, names: Mapping[str, str], *, tied: bool) -> None:
    """Raise ValueError for a tensor too few or too many, before any memory is taken.

    What is missing is else made up, and what is there in vain would change what a model says.
    """
    stored = {place.name for place in file.tensors}
    needed = names.keys() - ({_OUTPUT} if tied else set())
    if missing := sorted(needed - stored):
        raise ValueError(f"{len(missing)} tensors missing, first {missing[0]}")
    if left := sorted(stored - names.keys() - ROPE_TENSORS):
        raise ValueError(f"a model of {file.architecture} has no place for {left[0]} here")


def _processed(processor: Any, name: str, numbers: NDArray[Any]) -> NDArray[Any]:
    made = processor.process(weights=numbers, name=name)
    return made.weights  # type: ignore[no-any-return]


def _read(
    place: Place,
    process: _Process,
    stand_ins: StandIns | None,
    dtype: torch.dtype,
    name: str,
) -> Tensor:
    matrix = _matrix(place, process)
    if matrix is None:
        made = process(_numbers(place, place.data).numpy())
        return torch.from_numpy(np.ascontiguousarray(made)).to(dtype)
    return matrix.read(dtype) if stand_ins is None else stand_ins.of(matrix, dtype, name)


def _matrix(place: Place, process: _Process) -> GgufMatrix | None:
    """A matrix whose rows are those of the file, in whatever order."""
    if len(place.size) != 2:
        return None
    rows = np.arange(place.size[0] * 2, dtype=np.int64).reshape(-1, 2)
    try:
        order = process(rows)[:, 0] // 2
        moved = np.array_equal(process(rows), rows[order])
    except (ValueError, IndexError, TypeError):
        return None
    if not moved or not np.array_equal(np.sort(order), np.arange(place.size[0])):
        return None
    return GgufMatrix(place, None if np.array_equal(order, np.sort(order)) else order)
