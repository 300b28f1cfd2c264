"""The scalers, as the manifests have them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

KEDA = Path(__file__).parents[2] / "k8s" / "components" / "keda"
TIERS = ("orchestrator", "drafter", "verifier")
Queries = Mapping[str, Mapping[str, str]]
"""What each trigger of a tier asks Prometheus."""


def spec(tier: str, folder: Path = KEDA) -> Mapping[str, Any]:
    """What a tier's scaler is told."""
    content: Mapping[str, Any] = yaml.safe_load((folder / f"{tier}.yaml").read_text())["spec"]
    return content


def queries() -> Queries:
    """The expressions of every tier's scaler."""
    return {
        tier: {one["name"]: one["metadata"]["query"] for one in spec(tier)["triggers"]}
        for tier in TIERS
    }
