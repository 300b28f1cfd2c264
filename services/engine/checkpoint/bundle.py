"""What is needed to turn text into ids and back, taken from a transformers tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from services.contract.errors import StartError
from services.contract.types import NamedText, TokenizerBundle
from services.engine.checkpoint.files import cache_folder, locate, one_line
from services.engine.checkpoint.fingerprint import gguf_digest
from services.engine.checkpoint.gguf import converted


def make_bundle(tokenizer: Any, model: Any) -> TokenizerBundle:
    """The tokenizer, chat template and generation config of a model.

    Raises ValueError for a tokenizer without a `tokenizers` backend.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} has no fast tokenizer")
    text = _canonical(backend.to_str())
    templates = _templates(tokenizer.chat_template)
    return TokenizerBundle(
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        tokenizer_json=text,
        chat_template=templates.pop("default", ""),
        generation_config_json=_generation_config(model.generation_config),
        eos_token_ids=_eos_ids(
            model.generation_config.eos_token_id,
            model.config.get_text_config().eos_token_id,
            tokenizer.eos_token_id,
            _turn_ends(tokenizer),
        ),
        bos_token=tokenizer.bos_token or "",
        eos_token=tokenizer.eos_token or "",
        special_tokens=_named(tokenizer.special_tokens_map),
        chat_templates=_named(templates),
    )


def read_bundle(source: Path, model: Any, name: str) -> TokenizerBundle:
    """The tokenizer in a folder or a GGUF file; StartError when there is no fast one."""
    try:
        return make_bundle(_tokenizer(source), model)
    except Exception as error:
        raise StartError(f"model {name}: tokenizer: {one_line(error)}") from error


def _tokenizer(source: Path) -> Any:
    from transformers import AutoTokenizer

    if source.suffix == ".gguf":
        from services.engine.checkpoint import gguf_model

        return gguf_model.read_tokenizer(source)
    return AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)


def bundle_of(name: str) -> TokenizerBundle:
    """The tokenizer of a model whose weights are not loaded; StartError when there is none."""
    source = locate(name)
    return bundle_beside(source, read_config(source, name), name)


def source_folder(name: str, dtype: str = "float32", cache_dir: Path | None = None) -> Path:
    """The folder with safetensors that a model's name stands for, in `dtype` if from GGUF."""
    source, cache = locate(name), cache_folder(cache_dir)
    if source.suffix != ".gguf":
        return source
    return converted(source, gguf_digest(source, cache / "digests"), dtype, cache)


def bundle_beside(source: Path, config: Any, name: str) -> TokenizerBundle:
    """The same of a folder or a file whose configuration is read."""
    generation = read_generation_config(source, name, config)
    model = SimpleNamespace(config=config, generation_config=generation)
    return read_bundle(source, model, name)


def read_config(source: Path, name: str) -> Any:
    """The configuration of a saved model; StartError, one line, when it is broken."""
    from transformers import AutoConfig

    try:
        if source.suffix == ".gguf":
            from services.engine.checkpoint import gguf_model

            return gguf_model.read_config(source)
        return AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise StartError(f"model {name}: {one_line(error)}") from error


def read_generation_config(folder: Path, name: str, config: Any) -> Any:
    """The generation settings that a model was saved with, or those that follow from `config`."""
    from transformers import GenerationConfig

    try:
        if (folder / "generation_config.json").is_file():
            return GenerationConfig.from_pretrained(folder, local_files_only=True)
        return GenerationConfig.from_model_config(config)
    except Exception as error:
        raise StartError(f"model {name}: {one_line(error)}") from error


def _canonical(tokenizer_json: str) -> str:
    """The tokenizer without the padding and truncation of its last use."""
    return json.dumps({**json.loads(tokenizer_json), "padding": None, "truncation": None})


def _templates(given: str | Mapping[str, str] | None) -> dict[str, str]:
    """By their names; one alone is the default one."""
    return dict(given) if isinstance(given, Mapping) else {"default": given or ""}


def _named(texts: Mapping[str, Any]) -> tuple[NamedText, ...]:
    """Without what is no text, as a list of more tokens."""
    return tuple(NamedText(name, one) for name, one in texts.items() if isinstance(one, str))


def _generation_config(config: Any) -> str:
    settings = json.loads(config.to_json_string(use_diff=False))
    return json.dumps({name: value for name, value in settings.items() if value is not None})


def _turn_ends(tokenizer: Any) -> list[int]:
    """Of a turn and of a message in it, where a tokenizer names such tokens."""
    named = tokenizer.special_tokens_map
    texts = [named[name] for name in ("eot_token", "eom_token") if name in named]
    return [int(tokenizer.convert_tokens_to_ids(one)) for one in texts if isinstance(one, str)]


def _eos_ids(*sources: int | Iterable[int] | None) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for source in sources:
        if source is not None:
            ids.update(dict.fromkeys([source] if isinstance(source, int) else source))
    return tuple(ids)
