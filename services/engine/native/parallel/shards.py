"""One rank's part of a model, and the group of processes that have the other parts."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.files import one_line
from services.engine.native.loading import read_folder
from services.engine.spec import ModelSpec

LOOPBACK = "127.0.0.1"
_HEADS = ("num_attention_heads", "num_key_value_heads")


@dataclass(frozen=True, slots=True)
class Shard:
    """What a rank is told to load.

    `folder`: safetensors, of which it reads its part alone. `port`: where the ranks meet.
    `patience`: seconds that a rank waits for another within a forward. `cpus`: the cores
    of this rank.
    """

    folder: Path
    spec: ModelSpec
    port: int
    patience: float
    cpus: Sequence[int] = ()


def check_device(device: str, size: int) -> None:
    """Raise StartError unless each rank has a device; ranks take them in their order."""
    import torch

    there = torch.accelerator.current_accelerator(check_available=True)
    if device == "cpu" and there is None:
        return
    if device == "cpu":
        raise StartError(
            f"device: with tensor_parallel the model runs on {there}, which is here; "
            "hide it from this process to run on cpu"
        )
    if device != "cuda" or there is None or there.type != "cuda":
        raise StartError(f"device: with tensor_parallel it is cuda or cpu, not {device}")
    if torch.accelerator.device_count() < size:
        raise StartError(
            f"tensor_parallel: {size} ranks need a device each; "
            f"{torch.accelerator.device_count()} are here"
        )


def check_plan(folder: Path, name: str, size: int) -> None:
    """Raise StartError for a model that cannot be split over `size` ranks."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except Exception as error:
        raise StartError(f"model {name}: {one_line(error)}") from error
    if not config.base_model_tp_plan:
        raise StartError(
            f"tensor_parallel: {name} cannot be split: transformers has no tensor-parallel plan "
            f"for {config.model_type}"
        )
    for field in _HEADS:
        heads = getattr(config, field, None)
        if isinstance(heads, int) and heads % size:
            raise StartError(
                f"tensor_parallel: {size} does not divide {heads}, the {field} of {name}"
            )


def join(shard: Shard, rank: int, listening: socket.socket | None = None) -> None:
    """Meet the other ranks; returns when all are there. Rank 0 listens for them.

    Collectives raise RuntimeError where another rank does not come for `shard.patience`
    seconds: nobody waits in them for work.
    """
    import torch
    import torch.distributed as dist

    size = shard.spec.tensor_parallel
    # Read by transformers: which device is this rank's.
    os.environ["LOCAL_RANK"] = str(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_device())
    patience = timedelta(seconds=shard.patience)
    cuda = shard.spec.device != "cpu"
    device = torch.device("cuda", rank) if cuda else None
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            LOOPBACK,
            shard.port,
            size,
            listening is not None,
            timeout=patience,
            wait_for_workers=False,
            master_listen_fd=None if listening is None else listening.detach(),
        )
        if device is not None:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=patience,
            device_id=device,
        )
    except RuntimeError as error:
        raise StartError(f"tensor_parallel: the ranks cannot meet: {one_line(error)}") from error


def leave() -> None:
    """Leave the group, if this process is in one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def read_shard(shard: Shard) -> Any:
    """This rank's part of the model, on its device. Raises StartError."""
    from transformers.distributed import DistributedConfig

    split = DistributedConfig(tp_size=shard.spec.tensor_parallel)
    return read_folder(shard.folder, shard.spec, distributed_config=split)


def _loopback_device() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def divided(cpus: Sequence[int], rank: int, size: int) -> tuple[int, ...]:
    """The cores of one rank: a run of neighbours, or all of them where there are too few."""
    return tuple(cpus[rank * len(cpus) // size : (rank + 1) * len(cpus) // size]) or tuple(cpus)
