"""Near-ties: choices whose margin is so small that rounding can turn them.

Two ways of computing a row, as a step of one token and as a part of a block, round differently.
The figures are what 99 in 100 margins between the two best logits change by less than, of
smollm2-135m-instruct on a CPU: `python -m bench.near_ties --dtype DTYPE`. That of float32 is
the wider one that docs/guarantees.md promises equal texts beyond (measured: 4e-5). That of float16
is of transformers' forward, which computes in float16: the native engine takes float32 for it.
"""

from __future__ import annotations

ROUNDING = {"float32": 1e-3, "float16": 0.032, "bfloat16": 0.375}
"""By dtype, in units of logits."""


def rounding(dtype: str) -> float:
    """What a margin may change by; that of the coarsest for a dtype that is not known."""
    return ROUNDING.get(dtype, max(ROUNDING.values()))
