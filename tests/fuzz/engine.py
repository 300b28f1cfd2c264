"""An engine that is a table, with a budget that ends: so a leak shows."""

import numpy as np

from services.engine.checkpoint.bundle import make_bundle
from tests.fake_engine import TableEngine
from tests.models import CHAT_TEMPLATE
from tests.proof.two_token_models import letters, target_model

VOCAB, CONTEXT, CAPACITY = 12, 64, 1 << 16


def table_engine(seed: int = 0) -> TableEngine:
    """A random law over twelve letters, the last of which ends a text."""
    logits = np.random.default_rng(seed).normal(size=(VOCAB,) * 3) * 2.0
    tokenizer = letters(VOCAB)
    tokenizer.chat_template = CHAT_TEMPLATE
    engine = TableEngine(logits, CONTEXT, make_bundle(tokenizer, target_model(VOCAB)))
    engine.budget.capacity = CAPACITY
    return engine
