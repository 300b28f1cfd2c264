"""Drafts as hypotheses: each says which text it is of, and the newest counts.

`session` the text of one session and what is drafted behind it, `core` the worker.
"""

from services.drafter.hypotheses.core import HypothesisCore
from services.drafter.hypotheses.session import HypothesisSession

__all__ = ["HypothesisCore", "HypothesisSession"]
