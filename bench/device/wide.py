"""A small Llama in a larger shape: it speaks as the small one and costs what the large one does.

    python -m bench.device.wide --shape 8b --out DIR [--head NAME --head-out DIR]

Zeros stand around its weights, so its logits are the small one's up to rounding, and so is what
of a draft is accepted; every matrix has the size of `--shape`, so a step takes as long as there.
With --head, an EAGLE head of the small one becomes one for the wide one.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.command import say
from bench.device.shapes import SHAPES
from services.contract.errors import StartError
from services.engine.checkpoint.bundle import source_folder
from services.engine.checkpoint.files import locate

WEIGHTS, CONFIG = "model.safetensors", "config.json"
TENSORS_A_FILE = 54


class Placing(NamedTuple):
    """A factor of a weight, and where its rows and columns go; None: they stay the first ones."""

    factor: float = 1.0
    rows: Tensor | None = None
    columns: Tensor | None = None


def wide_config(small: Any, shape: Mapping[str, Any]) -> Any:
    """A Llama configuration of the large shape, with the small one's vocabulary and positions.

    Raises StartError where the small one does not fit.
    """
    from transformers import LlamaConfig

    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    kept = ("vocab_size", "max_position_embeddings", "rope_parameters", *tokens)
    large = LlamaConfig(
        **{**shape, **{name: getattr(small, name) for name in kept}},
        rms_norm_eps=small.rms_norm_eps * small.hidden_size / shape["hidden_size"],
    )
    large.tie_word_embeddings = False
    large.head_dim = _width(large)
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads")
    fits = all(getattr(large, name) >= getattr(small, name) for name in sizes)
    if not fits or _group(large) < _group(small) or _width(large) % _width(small):
        told = f"{small.num_hidden_layers} layers of {small.hidden_size} numbers"
        raise StartError(f"--shape: {told} do not fit")
    large.architectures = ["LlamaForCausalLM"]
    return large


def wide_weights(model: Any, large: Any, device: str) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the large shape by its name, in the model's dtype, made on `device`."""
    from transformers import LlamaForCausalLM

    placings, own = _placings(model.config, large), model.state_dict()
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in LlamaForCausalLM(large).state_dict().items()}
    for name, shape in shapes.items():
        made = torch.zeros(shape, dtype=model.dtype, device=device)
        if (weight := own.get(name)) is not None:
            factor, *places = placings.get(name.split(".")[-2], Placing())
            pairs = zip(places, weight.shape, strict=False)
            index = [torch.arange(size) if place is None else place for place, size in pairs]
            grid = torch.meshgrid(*(one.to(device) for one in index), indexing="ij")
            made[grid] = (weight * factor).to(device)
        yield name, made


def _placings(small: Any, large: Any) -> dict[str, Placing]:
    """Of each kind of weight whose numbers change, or do not stay the first ones.

    Norms make up for the zeros beside what they normalise, queries for the other scale of
    attention; queries and keys go to the rotary frequencies that they had.
    """
    norm = Placing(sqrt(small.hidden_size / large.hidden_size))
    queries = torch.arange(small.num_attention_heads)
    queries = queries // _group(small) * _group(large) + queries % _group(small)
    keys, plain = torch.arange(small.num_key_value_heads), torch.arange(_width(small))
    half = torch.arange(_width(small) // 2) * (_width(large) // _width(small))
    rotated = torch.cat([half, _width(large) // 2 + half])

    def rows(heads: Tensor, dimensions: Tensor) -> Tensor:
        return (heads[:, None] * _width(large) + dimensions).flatten()

    return {
        "norm": norm,
        "input_layernorm": norm,
        "post_attention_layernorm": norm,
        "q_proj": Placing(sqrt(_width(large) / _width(small)), rows(queries, rotated)),
        "k_proj": Placing(rows=rows(keys, rotated)),
        "v_proj": Placing(rows=rows(keys, plain)),
        "o_proj": Placing(columns=rows(queries, plain)),
    }


def _width(config: Any) -> int:
    """Numbers of an attention head."""
    return int(config.hidden_size // config.num_attention_heads)


def _group(config: Any) -> int:
    """Query heads of a key's."""
    return int(config.num_attention_heads // config.num_key_value_heads)


def write_wide(model: Any, tokenizer: Any, large: Any, out: Path, device: str = "cpu") -> None:
    """As workers load it, in files of some layers each: never more than one is in memory."""
    from safetensors.torch import save_file

    large.dtype = model.dtype
    for described in (large, tokenizer, model.generation_config):
        described.save_pretrained(out)
    held: dict[str, Tensor] = {}
    files: dict[str, str] = {}

    def write() -> None:
        name = f"model-{len(files):05d}.safetensors"
        save_file(held, out / name, {"format": "pt"})
        files.update(dict.fromkeys(held, name))
        held.clear()

    for name, weight in wide_weights(model, large, device):
        held[name] = weight.cpu()
        if len(held) == TENSORS_A_FILE:
            write()
    if held:
        write()
    index = {"metadata": {"total_size": 0}, "weight_map": files}
    (out / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def write_wide_head(head: Path, model: Any, width: int, out: Path) -> None:
    """A head in bfloat16 that reads states of `width`, of which the first ones are the small one's.

    With the small model's embeddings: those of the wide one are wider than the head.
    """
    from safetensors.torch import load_file, save_file

    stored, config = load_file(head / WEIGHTS), json.loads((head / CONFIG).read_text())
    weights = {name: _whole(stored, name) for name in stored if not name.endswith("_scale")}
    hidden = config["transformer_layer_config"]["hidden_size"]
    layers = weights["fc.weight"].chunk(weights["fc.weight"].shape[1] // hidden, dim=1)
    padded = [torch.nn.functional.pad(one, (0, width - hidden)) for one in layers]
    weights["fc.weight"] = torch.cat(padded, dim=1)
    embeddings = model.get_input_embeddings().weight.detach()
    weights["embed_tokens.weight"] = embeddings.to(torch.bfloat16).clone()
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / WEIGHTS, {"format": "pt"})
    for name in ("quantization_config", "paceline"):
        config.pop(name, None)
    (out / CONFIG).write_text(json.dumps(config | {"target_hidden_size": width}, indent=1))


def _whole(stored: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor out of its codes, if it is stored in int8."""
    tensor, scale = stored[name], stored.get(f"{name}_scale")
    return tensor if scale is None else (tensor.float() * scale.float()).to(torch.bfloat16)


def make(asked: argparse.Namespace) -> None:
    """What the command line asks for."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = source_folder(asked.model, asked.dtype)
    dtype = getattr(torch, asked.dtype)
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=dtype, local_files_only=True, trust_remote_code=False
    )
    large = wide_config(model.config, SHAPES[asked.shape])
    tokenizer = AutoTokenizer.from_pretrained(
        source, local_files_only=True, trust_remote_code=False
    )
    write_wide(model, tokenizer, large, asked.out, asked.device)
    say(f"{asked.model} in the shape {asked.shape}: {asked.out}")
    if asked.head:
        write_wide_head(Path(locate(asked.head)), model, large.hidden_size, asked.head_out)
        say(f"a head for it: {asked.head_out}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--model", default="smollm2-135m-instruct", help="the small one")
    made.add_argument("--dtype", default="bfloat16", help="of the wide one's weights")
    made.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    made.add_argument("--device", default="cpu", help="where the weights are put together")
    made.add_argument("--out", type=Path, required=True, help="folder of the wide model")
    made.add_argument("--head", help="an EAGLE head of the model")
    made.add_argument("--head-out", type=Path, default=Path("wide-head"), help="folder of its head")
    return made


if __name__ == "__main__":
    try:
        make(parser().parse_args())
    except StartError as error:
        sys.exit(str(error))
