"""What a model folder has of templates and special tokens reaches whoever renders."""

from __future__ import annotations

import copy
from pathlib import Path

from services.contract.types import NamedText
from services.engine.checkpoint.bundle import bundle_of, make_bundle
from tests.models import BOS, EOS, PAD, tiny_model, tiny_model_folder, tiny_tokenizer


def test_the_bundle_has_every_template_and_special_token() -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = {"default": "plain", "tool_use": "tools", "rag": "texts"}
    bundle = make_bundle(tokenizer, tiny_model("llama"))
    assert bundle.chat_template == "plain"
    others = {one.name: one.text for one in bundle.chat_templates}
    assert others == {"tool_use": "tools", "rag": "texts"}
    tokens = {one.name: one.text for one in bundle.special_tokens}
    assert tokens == {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}


def test_a_folder_with_templates_in_files_of_their_own_has_them_by_name(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("plain")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    bundle = bundle_of(str(folder))
    assert bundle.chat_template == "plain"
    assert bundle.chat_templates == (NamedText("tool_use", "tools"),)
