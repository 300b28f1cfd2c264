"""What a verifier says of a prompt, as readers get it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.session.logprobs import pack_row
from orchestrator.session.output import Output
from orchestrator.steering.config import SessionConfig
from orchestrator.steering.logprobs import new_rows, rows_fit
from services.contract.types import LogprobRow


def put_scores(
    output: Output, position: int, rows: Sequence[LogprobRow], config: SessionConfig
) -> bool:
    """Keep what is new of the rows of tokens from `position` on; False: they cannot be."""
    asked = config.sampling.prompt_logprobs
    new = new_rows(rows, position, output.prompt_known + 1, output.prompt_missing)
    if new is None or not rows_fit(new, asked or 0, config.vocab_size):
        return False
    if new:
        output.put_prompt(tuple(map(pack_row, new)))
    return True
