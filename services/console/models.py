"""Names of the models that come with Paceline, and what a name says of a draft model."""

from __future__ import annotations

from pathlib import Path

DEMO_MODEL = "smollm2-135m-instruct"
DEMO_DRAFT = "smollm2-135m-instruct-draft"


def is_distilled(draft: str) -> bool:
    """Whether a draft model was distilled from a target, and so fits no other."""
    return draft == DEMO_DRAFT or (Path(draft).expanduser() / "draft.json").is_file()
