"""Whether a model fits the device it is to run on, and the K/V of its sessions beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from services.contract.errors import StartError
from services.engine.limits import affordable_tokens, free_memory

LEAST_TOKENS = 256
"""Tokens of K/V below which a process would do nothing but refuse sessions."""


def place(model: Any, name: str, device: str) -> Any:
    """The model, moved to `device`.

    Raises StartError with what its weights take and what is free where they do not fit,
    and for a device that is not there.
    """
    try:
        free = free_bytes(device)
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise StartError(
            f"model {name}: its weights take {_size(weight_bytes(model))}, "
            f"and {device} has {_size(free)} free"
        ) from error
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StartError(f"device: {device} cannot be used: {reason}") from error


@contextmanager
def room_to_run(model: Any, name: str) -> Iterator[None]:
    """Raise StartError where a first forward of a model does not fit beside its weights."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise StartError(
            f"model {name}: its weights take {_size(weight_bytes(model))}; the "
            f"{_size(free_bytes(model.device))} left on {model.device} are too little to run it"
        ) from error


def kv_capacity(name: str, asked: int | None, bytes_per_token: int, longest: int, free: int) -> int:
    """Tokens of K/V to hold: those asked for, else what a cautious share of `free` bytes holds.

    `longest`: the longest text of a session. Raises StartError for more than is free, and
    where there is too little for any session.
    """
    if asked is not None:
        if asked * bytes_per_token > free:
            raise StartError(
                f"kv_capacity_tokens: K/V of {asked} tokens of {name} takes "
                f"{_size(asked * bytes_per_token)}, and {_size(free)} are free"
            )
        return asked
    tokens, least = affordable_tokens(bytes_per_token, free), min(longest, LEAST_TOKENS)
    if tokens < least:
        raise StartError(
            f"model {name}: K/V of {least} tokens, the least to serve with, takes "
            f"{_size(least * bytes_per_token)}; {_size(free)} are free, of which a quarter may be "
            "K/V: free some, or say how many with kv_capacity_tokens"
        )
    return tokens


def weight_bytes(model: Any) -> int:
    """Bytes of a model's weights."""
    return sum(tensor.nbytes for tensor in model.parameters())


def free_bytes(device: str | torch.device) -> int:
    """Bytes that this process may still take on a device."""
    wanted = torch.device(device)
    if wanted.type == "cuda":
        free, _ = torch.cuda.mem_get_info(wanted)
        return free
    return free_memory()


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
