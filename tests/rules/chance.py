"""How likely it is that counts like these come from a law."""

import torch

ALARM = 1e-6
"""A test on random numbers fails below this probability: by accident once in a million."""


def p_value(counts, law):
    """Pearson's chi-square: counts and law are tensors of one shape, law sums to 1.

    Tokens of law 0 may not occur at all.
    """
    counts, law = torch.as_tensor(counts).double(), torch.as_tensor(law).double()
    possible = law > 0
    if counts[~possible].sum() > 0:
        return 0.0
    expected = law[possible] * counts.sum()
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))
