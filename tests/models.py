"""Tiny random causal LMs, in memory or saved like a real one (safetensors and tokenizer).

    tiny_model("llama")                    a transformers model, float32, eval mode
    tiny_model_folder(tmp_path, "llama")   a folder that `--target`/`--draft` accepts

The same (arch, seed) always gives the same weights. The vocabulary is that of
`tiny_tokenizer()`: byte-level BPE with `<|im_end|>` as EOS and a chat template,
so any text can be encoded. Weights are scaled up: greedy text varies and its
best logit leads by far more than float32 noise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

VOCAB_SIZE = 320
BOS, EOS, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
BOS_ID, EOS_ID, PAD_ID = 0, 1, 2
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] }}({{ call['function']['arguments'] | tojson }})"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
_SLIDING = {"sliding_window": 12}
_ALTERNATING = ["sliding_attention", "full_attention"]

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": _SLIDING,
    "gemma2": {
        **_SLIDING,
        "layer_types": _ALTERNATING,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {**_SLIDING, "layer_types": _ALTERNATING, "query_pre_attn_scalar": 24},
    "phi3": {},
    "gpt2": {"activation_function": "gelu_new"},
    "gpt_neox": {},
    "olmo2": {},
    "granite": {"logits_scaling": 0.5, "attention_multiplier": 0.3},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere": {"logit_scale": 0.5},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "gpt_oss": {**_SLIDING, "num_local_experts": 4, "layer_types": _ALTERNATING},
    "bloom": {"n_head": 4, "n_layer": 2},
    "mamba": {"state_size": 8},
}
SUPPORTED = tuple(name for name in ARCHITECTURES if name not in ("gpt_oss", "bloom", "mamba"))
_NO_KV_HEADS = ("gpt2", "gpt_neox", "opt", "bloom", "mamba")


def tiny_model(
    arch: str, vocab: int = VOCAB_SIZE, seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """A random float32 model of one of `ARCHITECTURES`; `overrides` go into its config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    common = dict(_COMMON)
    if arch in _NO_KV_HEADS:
        common.pop("num_key_value_heads"), common.pop("head_dim")
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    settings = {**common, "vocab_size": vocab, "tie_word_embeddings": False, **ids}
    config = AutoConfig.for_model(arch, **{**settings, **ARCHITECTURES[arch], **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        ).eval()
        _spread(model)
    model.generation_config.do_sample = False
    return model


def _spread(model: PreTrainedModel) -> None:
    """Scale random matrices so that logits differ by whole units and attention matters."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                fan_in = 1 if "emb" in name or "wte" in name or "wpe" in name else weight.shape[-1]
                weight.normal_(std=_gain(name) / fan_in**0.5)
            elif name.endswith("bias"):
                weight.normal_(std=0.05)


def _gain(name: str) -> float:
    if "head" in name or "embed_out" in name:
        return 4.0
    return 2.0 if any(part in name for part in ("q_proj", "k_proj", "qkv", "c_attn")) else 1.0


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of `VOCAB_SIZE` ids, trained on the spot; encodes any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = (
        "the small drafter rides ahead and proposes tokens; "
        "the large verifier checks them all and keeps each law "
    )
    tokenizer.train_from_iterator([text * 3], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model_folder(
    folder: Path,
    arch: str = "llama",
    seed: int = 0,
    change: Callable[[Any], None] | None = None,
    **overrides: Any,
) -> Path:
    """Save a tiny model and its tokenizer below `folder`; return the folder to load.

    `change` may edit the model before it is saved, `overrides` go into its config. An
    existing folder is reused.
    """
    target = folder / f"{arch}-{seed}"
    if target.exists() and change is None:
        return target
    model = tiny_model(arch, seed=seed, **overrides)
    if change is not None:
        change(model)
    model.save_pretrained(target)
    tiny_tokenizer().save_pretrained(target)
    return target
