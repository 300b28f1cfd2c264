"""Single blocks for the rules' own tests."""

from collections.abc import Sequence

import numpy as np
import torch

from services.contract.types import DraftTree, Proposal, VerifyMode
from services.engine.noise import Stream
from services.verifier.rules import Outcome, Proposed, judge
from tests.rules.worlds import sparse

# A target and a draft law per row, whatever the tokens before.
P = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.25, 0.25, 0.5], [0.1, 0.7, 0.2]])
Q = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.4, 0.4, 0.2]])


def sampled_chain(q: Sequence[np.ndarray], tokens: Sequence[int]) -> DraftTree:
    return DraftTree(tuple(tokens), None, tuple(map(sparse, q)), Proposal.SAMPLED)


def proposed(
    tree: DraftTree,
    p: np.ndarray,
    u: Sequence[float] | dict[tuple[int, int], float],
    mode: str = "STANDARD",
    own: Sequence[float] = (),
) -> Proposed:
    """`u`: per row, or per (row, candidate); `own`: the target's own number per row."""
    accept = u if isinstance(u, dict) else {(row, 0): number for row, number in enumerate(u)}

    def uniform(stream: Stream, row: int, candidate: int) -> float:
        return accept[row, candidate] if stream is Stream.ACCEPT else own[row]

    return Proposed(tree, torch.from_numpy(np.asarray(p)).log(), uniform, VerifyMode[mode])


def judged_chain(
    p: np.ndarray, q: Sequence[np.ndarray], tokens: Sequence[int], u: Sequence[float], mode: str
) -> Outcome:
    return judge([proposed(sampled_chain(q, tokens), p, u, mode)])[0]


class Numbers:
    """Random laws, draft tokens drawn from q, and uniforms."""

    def __init__(self, rng: np.random.Generator, length: int, vocab: int) -> None:
        self.p = rng.dirichlet(np.ones(vocab), length + 1)
        self.q = rng.dirichlet(np.ones(vocab), length)
        self.x = [int(rng.choice(vocab, p=law)) for law in self.q]
        self.u = rng.random(length).tolist()
