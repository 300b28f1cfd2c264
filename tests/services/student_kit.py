"""A drafter cut from a tiny target, in a folder as `paceline distill` writes it."""

from __future__ import annotations

from pathlib import Path


def distilled_folder(folder: Path) -> tuple[Path, Path]:
    """Below `folder`, a tiny base and an untrained drafter of it; both folders."""
    import torch

    from services.engine.checkpoint.files import weights_digest
    from services.engine.native.loading import load_model
    from services.engine.native.student import cut, save_student
    from services.engine.spec import ModelSpec
    from tests.models import tiny_model_folder

    torch.set_num_threads(1)
    base = tiny_model_folder(folder, "llama")
    student = cut(load_model(ModelSpec(str(base))).model, [0], torch.arange(0, 320, 2))
    weights = weights_digest(str(base), folder)
    draft = folder / "draft"
    save_student(student, draft, base=str(base), base_weights=weights, storage="int8", card={})
    return base, draft
