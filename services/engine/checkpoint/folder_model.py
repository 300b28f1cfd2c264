"""Folders of safetensors as transformers reads them, with stand-ins for the matrices in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.engine.checkpoint.stored import StandIns

_KINDS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_model(folder: Path, dtype: torch.dtype, stand_ins: StandIns | None = None) -> Any:
    """The causal language model in a folder, with its weights or stand-ins for most of them.

    Returns it with transformers' report. Raises what transformers raises for a broken folder.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with nullcontext() if stand_ins is None else _standing_in(stand_ins, dtype):
        return AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="eager",
        )


class FolderMatrix:
    """A matrix of a safetensors file; see `Stored`."""

    def __init__(self, file: Path, name: str, shape: tuple[int, int]) -> None:
        self._file, self._name = file, name
        self._mapped: Tensor | None = None
        self.shape = shape

    def read(self, dtype: torch.dtype, first: int = 0, last: int | None = None) -> Tensor:
        """See `Stored`."""
        return self._found()[first:last].to(dtype)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Stored`."""
        if self._mapped is None:
            self._mapped = self._found()
        return self._mapped[ids].to(dtype)

    def _found(self) -> Tensor:
        """Mapped from the file, for as long as somebody has it."""
        from safetensors import safe_open

        with safe_open(self._file, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(self._name)
        return tensor

    def codes(self, first: int = 0, last: int | None = None) -> None:  # noqa: ARG002
        """See `Stored`: these are plain numbers."""
        return


class _File:
    """A file as transformers opens it, whose matrices are stand-ins."""

    def __init__(self, opened: Any, file: Path, stand_ins: StandIns, dtype: torch.dtype) -> None:
        self._opened, self._file, self._stand_ins, self._dtype = opened, file, stand_ins, dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> _File:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(*error)

    def get_slice(self, name: str) -> Any:
        """What transformers cuts a tensor from."""
        found = self._opened.get_slice(name)
        kind, shape = found.get_dtype(), found.get_shape()
        if kind not in _KINDS or len(shape) != 2:
            return found
        matrix = FolderMatrix(self._file, name, (shape[0], shape[1]))
        return _Whole(self._stand_ins.of(matrix, self._dtype, name), kind)


class _Whole:
    """A slice that is only ever cut whole."""

    def __init__(self, tensor: Tensor, kind: str) -> None:
        self._tensor, self._kind = tensor, kind

    def __getitem__(self, _: Any) -> Tensor:
        return self._tensor

    def get_dtype(self) -> str:
        """Of the file's numbers."""
        return self._kind

    def get_shape(self) -> list[int]:
        """Rows and columns."""
        return list(self._tensor.shape)


@contextmanager
def _standing_in(stand_ins: StandIns, dtype: torch.dtype) -> Iterator[None]:
    """Let transformers find stand-ins in the files that it opens."""
    from transformers import modeling_utils

    stock = modeling_utils.safe_open

    def opened(file: Any, *args: Any, **named: Any) -> Any:
        return _File(stock(file, *args, **named), Path(file), stand_ins, dtype)

    modeling_utils.safe_open = opened
    try:
        yield
    finally:
        modeling_utils.safe_open = stock
