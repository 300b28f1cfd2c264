"""The finished drafter's folder: stored, read back, measured, described, renamed into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from services.engine.native.student import Student, load_student, save_student
from services.training.distill.card import Story, card_of, readme
from services.training.distill.checks import Job
from services.training.distill.learning import Score, evaluate
from services.training.distill.plot import plot_curve
from services.training.distill.texts import Text


def publish(job: Job, student: Student, held: Sequence[Text], story: Story) -> None:
    """Write the folder of a trained student; its figures are those of what was stored."""
    out = job.options.out
    scratch = out.with_name(f".{out.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    _save(job, student, scratch, {})
    stored = measure_stored(job, student, scratch, held)
    card = card_of(job, story, stored, _size(scratch))
    _save(job, student, scratch, card)
    (scratch / "README.md").write_text(readme(card))
    plot_curve(story.curve, scratch / "acceptance.svg")
    _share(scratch)
    os.rename(scratch, out)


def measure_stored(job: Job, student: Student, folder: Path, held: Sequence[Text]) -> Score:
    """The score of the student as it is read from `folder`, in float32."""
    embeddings = student.model.get_parameter
    stored = load_student(folder, job.target.config, embeddings, torch.float32)
    stored.model.to(job.device)
    return evaluate(stored, held)


def _save(job: Job, student: Student, folder: Path, card: dict[str, object]) -> None:
    save_student(
        student,
        folder,
        base=job.options.target,
        base_weights=job.target.weights,
        storage=job.options.storage,
        card=card,
    )


def _share(folder: Path) -> None:
    # safetensors makes files that only their owner may read; a drafter is served by others too.
    mode = (folder / "README.md").stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
