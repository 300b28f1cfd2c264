import numpy as np
import pytest
import torch

from services.verifier.rules import standard
from tests.rules import reference
from tests.rules.blocks import Numbers, P, Q, judged_chain


@pytest.mark.parametrize(
    ("tokens", "u", "accepted", "law"),
    [
        ((0, 0, 2), (0.9, 0.9, 0.3), 0, (0, 2 / 3, 1 / 3)),
        ((0, 1, 2), (0.1, 0.9, 0.9), 1, (1, 0, 0)),
        ((1, 0, 2), (0.99, 0.99, 0.99), 3, (0.1, 0.7, 0.2)),
        ((0, 1, 0), (0.95, 0.95, 0.95), 0, (0, 2 / 3, 1 / 3)),
    ],
)
def test_the_vectors_of_the_literature_come_out(tokens, u, accepted, law):
    outcome = judged_chain(P, Q, tokens, u, "STANDARD")
    assert outcome.path == tuple(range(accepted))
    assert outcome.all_accepted == (accepted == 3)
    assert outcome.law.tolist() == pytest.approx(law, abs=1e-15)


def test_the_first_rejection_ends_the_block():
    log_ratio = torch.tensor(
        [[0.5, 2.0, 0.5, 2.0], [0.5, 0.5, 0.5, 0.5]], dtype=torch.float64
    ).log()
    u = torch.tensor([[0.4, 0.9, 0.6, 0.1], [0.4, 0.4, 0.4, 0.4]], dtype=torch.float64)
    assert standard.accepted(log_ratio, u).tolist() == [2, 4]


def test_a_number_at_the_ratio_itself_rejects():
    log_ratio = torch.tensor([[0.5]], dtype=torch.float64).log()
    for u, accepted in ((0.5, 0), (np.nextafter(0.5, 0), 1)):
        assert standard.accepted(log_ratio, torch.tensor([[u]])).tolist() == [accepted]


def test_a_token_without_target_mass_is_never_accepted():
    p, q = np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([[0.5, 0.5]])
    outcome = judged_chain(p, q, (0,), (0.0,), "STANDARD")
    assert outcome.path == ()
    assert outcome.law.tolist() == [0.0, 1.0]


def test_equal_laws_accept_whatever_the_number():
    outcome = judged_chain(P, P[:3], (0, 1, 2), (1 - 2**-53,) * 3, "STANDARD")
    assert outcome.all_accepted


def test_random_blocks_agree_with_the_paper_read_line_by_line():
    rng = np.random.default_rng(7)
    for _ in range(300):
        numbers = Numbers(rng, length=int(rng.integers(1, 6)), vocab=int(rng.integers(2, 7)))
        p, q, x, u = numbers.p, numbers.q, numbers.x, numbers.u
        accepted = reference.standard_accepted(reference.standard_thresholds(p, q, x), u)
        outcome = judged_chain(p, q, x, u, "STANDARD")
        rest = p[-1] if accepted == len(x) else reference.residual(p[accepted], q[accepted])
        assert len(outcome.path) == accepted
        np.testing.assert_allclose(outcome.law, rest, atol=1e-12)
