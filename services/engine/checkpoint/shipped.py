"""The models that come with Paceline, by name: the folder `models`, a distribution of its own.

It lies beside the code: at the root of a checkout; installed, `paceline-models` puts it there.
"""

from __future__ import annotations

from pathlib import Path

from services.contract.errors import StartError

MODELS = Path(__file__).parents[3] / "models"
SHIPPED = {
    "smollm2-135m-instruct-eagle": "heads/smollm2-135m-instruct",
    "smollm2-135m-instruct-ngrams": "ngrams/smollm2-135m-instruct/ngrams.bin",
    "smollm2-135m-instruct-lookahead": "embeddings/smollm2-135m-instruct.safetensors",
}
"""Names, in lower case, and what they stand for: kind/path."""


def is_shipped(kind: str, name: str) -> bool:
    """Whether a name is that of one of our `heads`, `ngrams` or `embeddings`, installed or not."""
    return SHIPPED.get(name.lower(), "").startswith(f"{kind}/")


def shipped(kind: str, name: str) -> Path | None:
    """Its folder or file; None where no model of that kind has the name.

    Raises StartError where it is not installed.
    """
    if not is_shipped(kind, name):
        return None
    path = MODELS / SHIPPED[name.lower()]
    if not path.exists():
        raise StartError(f"model {name}: not installed here (pip install paceline-models)")
    return path
