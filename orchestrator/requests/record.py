"""A SessionSpec as stored bytes, so that another orchestrator goes on with the same values."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from orchestrator.requests.spec import SessionSpec
from services.common.errors import DataLoss
from services.common.types import ResolvedSampling, VerifyMode

VERSION = 1


def dump_spec(spec: SessionSpec) -> bytes:
    """A spec without its prompt, which is stored beside it."""
    # asdict would copy the prompt id by id.
    values = asdict(replace(spec, prompt=()))
    values |= {"mode": spec.mode.name, "version": VERSION}
    del values["prompt"]
    return json.dumps(values, separators=(",", ":")).encode()


def load_spec(record: bytes, prompt: tuple[int, ...]) -> SessionSpec:
    """The spec that `dump_spec` wrote. Raises DataLoss for a record of another kind."""
    try:
        values = json.loads(record)
        if values.pop("version") != VERSION:
            raise ValueError("another version")
        values["sampling"] = _load_sampling(values["sampling"])
        values["mode"] = VerifyMode[values["mode"]]
        values |= {"stop": tuple(values["stop"]), "method": tuple(values["method"])}
        return SessionSpec(prompt=prompt, **values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLoss(f"the stored session cannot be read: {error!r}") from error


def _load_sampling(values: dict[str, Any]) -> ResolvedSampling:
    biases = tuple((token, bias) for token, bias in values["logit_bias"])
    ids = tuple(values["stop_token_ids"])
    return ResolvedSampling(**values | {"logit_bias": biases, "stop_token_ids": ids})
