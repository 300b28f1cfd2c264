"""The published AMUSD traces (McDanel 2024, 2410.17375); see bench/data/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.contract.errors import StartError
from services.engine.synthetic.agreement import agreements
from services.engine.synthetic.spec import complaint

TRACES = Path(__file__).parents[1] / "data" / "amusd_traces.json"
DRAFTED = 5
"""Drafted tokens a round of the synchronous runs."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Plain(_Part):
    """Plain decoding."""

    token_ms: float = Field(gt=0)
    ms_per_token: float = Field(gt=0)


class Synchronous(_Part):
    """Synchronous speculation: a drafted token, a verification, and what each emitted."""

    draft_ms: float = Field(gt=0)
    verify_ms: float = Field(gt=0)
    ms_per_token: float = Field(gt=0)
    accepted: tuple[int, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        agreements(self.accepted, DRAFTED)
        return self


class Asynchronous(_Part):
    """AMUSD, as published."""

    ms_per_token: float = Field(gt=0)


class Trace(_Part):
    """One published run; `places`: where drafter and target agree."""

    name: str
    plain: Plain
    sd: Synchronous
    amusd: Asynchronous

    @property
    def places(self) -> tuple[bool, ...]:
        """One for each token of the synchronous run."""
        return agreements(self.sd.accepted, DRAFTED)


class _File(_Part):
    traces: tuple[Trace, ...] = Field(min_length=1)


def load_trace(name: str, file: Path = TRACES) -> Trace:
    """The trace of a name. Raises StartError, one line, for an unknown one or a wrong file."""
    try:
        found = _File.model_validate_json(file.read_bytes()).traces
    except OSError as error:
        raise StartError(f"--trace: {file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise StartError(f"--trace: {file} has another form: {complaint(error)}") from None
    traces = {trace.name: trace for trace in found}
    if name not in traces:
        raise StartError(f"--trace: {name!r} is not one of {', '.join(traces)}")
    return traces[name]
