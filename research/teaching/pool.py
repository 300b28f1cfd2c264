"""What was written, gathered on the device for training and for averaging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from research.teaching.writing import Wave

_LEAST_ANSWER = 8
_SHUFFLED = 12.0
"""Tokens by which lengths of neighbours may differ."""


class Pool:
    """Texts of several waves; see `Wave` for the shapes."""

    def __init__(self) -> None:
        self.distributions = 0
        self._tokens: list[Tensor] = []
        self._bounds: list[Tensor] = []
        self._heats: list[Tensor] = []
        self._laws: list[tuple[Tensor, Tensor, Tensor]] = []
        self.mass = torch.zeros(())

    def add(self, wave: Wave) -> None:
        """Take the texts with answers that are long enough, and all distributions."""
        good = wave.ends - wave.starts >= _LEAST_ANSWER
        self._tokens.append(wave.tokens[good].int())
        self._bounds.append(torch.stack((wave.starts[good], wave.ends[good])))
        self._heats.append(wave.heats[good])
        rows = good[wave.texts]
        self._laws.append((wave.contexts()[rows].int(), wave.ids[rows], wave.chances[rows]))
        self.distributions += int(rows.sum())
        self.mass = self.mass.to(wave.mass.device) + wave.mass

    @property
    def tokens(self) -> Tensor:
        """[N, T], padded with 0."""
        longest = max(part.shape[1] for part in self._tokens)
        return torch.cat([F.pad(part, (0, longest - part.shape[1])) for part in self._tokens])

    @property
    def starts(self) -> Tensor:
        """[N]."""
        return torch.cat([part[0] for part in self._bounds])

    @property
    def ends(self) -> Tensor:
        """[N]."""
        return torch.cat([part[1] for part in self._bounds])

    @property
    def heats(self) -> Tensor:
        """At which temperature each was drawn [N]."""
        return torch.cat(self._heats)

    @property
    def contexts(self) -> Tensor:
        """[R, CONTEXT]."""
        return torch.cat([part[0] for part in self._laws])

    @property
    def ids(self) -> Tensor:
        """[R, KEPT]."""
        return torch.cat([part[1] for part in self._laws])

    @property
    def chances(self) -> Tensor:
        """[R, KEPT]."""
        return torch.cat([part[2] for part in self._laws])

    def save_texts(self, path: Path) -> None:
        """Write the texts without their distributions to a .npz file, for `add_texts`."""
        tokens, starts, ends = self.tokens, self.starts, self.ends
        inside = torch.arange(tokens.shape[1], device=tokens.device) < ends[:, None]
        arrays = {"starts": starts, "ends": ends, "heats": self.heats, "mass": self.mass}
        stored: dict[str, Any] = {name: part.cpu().numpy() for name, part in arrays.items()}
        small = np.uint16 if len(self.mass) <= 1 << 16 else np.uint32
        np.savez_compressed(path, tokens=tokens[inside].cpu().numpy().astype(small), **stored)

    def add_texts(self, path: Path, device: torch.device) -> None:
        """Take texts that `save_texts` wrote. Raises OSError, KeyError and ValueError."""
        with np.load(path) as stored:
            tokens = torch.from_numpy(stored["tokens"].astype(np.int32)).to(device)
            bounds = np.stack((stored["starts"], stored["ends"]))
            heats, mass = (torch.from_numpy(stored[name]) for name in ("heats", "mass"))
        starts_and_ends = torch.from_numpy(bounds).to(device)
        ends = starts_and_ends[1]
        inside = torch.arange(int(ends.max()), device=device) < ends[:, None]
        self._tokens.append(inside.int().masked_scatter_(inside, tokens))
        self._bounds.append(starts_and_ends)
        self._heats.append(heats.to(device))
        self.mass = self.mass.to(device) + mass.to(device)

    def forget_laws(self) -> None:
        """Free the distributions."""
        self._laws.clear()
        torch.cuda.empty_cache()


class Shelf:
    """Texts of a pool by length, to take some of like length at random."""

    def __init__(self, pool: Pool, seed: int) -> None:
        tokens, starts, ends = pool.tokens, pool.starts, pool.ends
        order = ends.argsort()
        self._tokens, self._starts, self._ends = tokens[order], starts[order], ends[order]
        self._lengths = self._ends.tolist()
        self._chance = torch.Generator().manual_seed(seed)

    def batches(self, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens, starts and ends of texts with `most` tokens at most, padding included; for ever.

        Epoch after epoch, in an order of its own each time.
        """
        while True:
            # Texts are dealt anew between neighbours of like length.
            noise = torch.rand(len(self._lengths), generator=self._chance) * _SHUFFLED
            order = (torch.tensor(self._lengths) + noise).argsort().tolist()
            cuts = list(self._cut(order, most))
            for place in torch.randperm(len(cuts), generator=self._chance).tolist():
                longest, numbers = cuts[place]
                mine = torch.tensor(numbers, device=self._tokens.device)
                tokens = self._tokens[mine, :longest].long()
                yield tokens, self._starts[mine], self._ends[mine]

    def _cut(self, order: Sequence[int], most: int) -> Iterator[tuple[int, list[int]]]:
        """Runs of texts that have `most` tokens or less, each with its longest."""
        longest, run = 0, list[int]()
        for number in order:
            wanted = max(longest, self._lengths[number])
            if run and (len(run) + 1) * wanted > most:
                yield longest, run
                wanted, run = self._lengths[number], []
            longest = wanted
            run.append(number)
        if run:
            yield longest, run
