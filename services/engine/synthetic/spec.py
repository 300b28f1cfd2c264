"""The file that `--synthetic` names: times in milliseconds, and how often drafts are right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.contract.errors import StartError
from services.engine.synthetic.agreement import Agreement, agreements
from services.engine.synthetic.costs import Costs
from services.engine.synthetic.laws import Laws, laws

MODEL = "synthetic"

Milliseconds = Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class VerifierTimes(_Part):
    """A forward of one session without drafts, with drafts, and what comes on top; see `Costs`."""

    plain_ms: Milliseconds
    verify_ms: Milliseconds
    row_ms: Milliseconds = 0.0
    session_ms: Milliseconds = 0.0
    prompt_ms: Milliseconds | None = None
    prompt_token_ms: Milliseconds = 0.0

    def costs(self) -> Costs:
        """What a forward of the verifier takes."""
        prompt_ms = self.plain_ms if self.prompt_ms is None else self.prompt_ms
        return Costs(
            self.plain_ms,
            self.verify_ms,
            self.row_ms,
            self.session_ms,
            prompt_ms,
            self.prompt_token_ms,
        )


class DrafterTimes(_Part):
    """A forward of one session, and what comes on top."""

    draft_ms: Milliseconds
    session_ms: Milliseconds = 0.0
    prompt_ms: Milliseconds | None = None
    prompt_token_ms: Milliseconds = 0.0

    def costs(self) -> Costs:
        """What a forward of the drafter takes."""
        prompt_ms = self.draft_ms if self.prompt_ms is None else self.prompt_ms
        return Costs(
            self.draft_ms,
            self.draft_ms,
            session_ms=self.session_ms,
            prompt_ms=prompt_ms,
            prompt_token_ms=self.prompt_token_ms,
        )


class DraftAgreement(_Part):
    """Independent draws with `rate`, or what each round of a published run `accepted`.

    Of such a run with `drafted` tokens a round; it repeats, or is followed by draws. With an
    `overlap` both are unsure of their tokens, and `rate` is of what is accepted at temperature 1
    (see `laws`).
    """

    rate: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    accepted: tuple[int, ...] = ()
    drafted: Annotated[int, Field(ge=1)] = 5
    repeat: bool = True
    overlap: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.rate is None and not self.accepted:
            raise ValueError("a rate, or what each round accepted, is needed")
        agreements(self.accepted, self.drafted)
        if self.overlap is not None and self.accepted:
            raise ValueError("an overlap is of a rate, not of what each round accepted")
        self.laws()
        return self

    def laws(self) -> Laws | None:
        """Those of target and drafter; None where they are sure. Raises ValueError."""
        if self.overlap is None or self.rate is None:
            return None
        return laws(self.rate, self.overlap)

    def make(self) -> Agreement:
        """The same, as worlds take it; without a rate draws are right as often as the list."""
        listed = agreements(self.accepted, self.drafted)
        rate = sum(listed) / len(listed) if self.rate is None else self.rate
        return Agreement(rate, self.seed, listed, self.repeat)


class SyntheticSpec(_Part):
    """What synthetic workers are to be like; the same file for all workers of a cluster.

    `whole_steps`: of steps in a row the times hold what a worker computes between its
    forwards, too (see `pacemaker`); False: they are of forwards alone.
    """

    name: str = ""
    whole_steps: bool = True
    verifier: VerifierTimes
    drafter: DrafterTimes
    draft_agreement: DraftAgreement = Field(alias="agreement")

    def agreement(self) -> Agreement:
        """Where drafts are right."""
        return self.draft_agreement.make()

    @property
    def laws(self) -> Laws | None:
        """What target and drafter draw from; None where they are sure of their tokens."""
        return self.draft_agreement.laws()

    @property
    def target_id(self) -> str:
        """The verifier's model id: whoever reads it knows that no model runs."""
        return f"{MODEL}-{self.name}" if self.name else MODEL

    @property
    def draft_id(self) -> str:
        """The drafter's."""
        return f"{self.target_id}-draft"


def read_spec(path: Path) -> SyntheticSpec:
    """The file's content. Raises StartError, one line, for a file that is missing or wrong."""
    try:
        return SyntheticSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StartError(f"--synthetic: {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise StartError(f"--synthetic: {path}: {complaint(error)}") from None


def complaint(error: ValidationError) -> str:
    """What is wrong, and where; of several faults the first."""
    first: Any = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {message}" if where else message
