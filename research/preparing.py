"""What a drafter's idle moments bring, in time units of its own: no services, no clock.

    python -m research.preparing --draft DIR

The target's own answers to real prompts are known beforehand; the real drafter core with
the real draft model drafts for them, and a verifier that takes `--verify` draft steps
judges by the answer. A row beside a step's first adds `--row` to it. Time is counted in
draft steps, so the figures do not depend on how busy the machine is. A round leaves
`--hop` after the verdict before it, or, where it waits for a draft, with its first
token. A command that comes while a step runs waits for its end, as it does in a drafter.

- *second*, *third*: of the rounds that ended with another token than was drafted, those
  where it was the drafter's own second or third choice;
- *ready*: of these rounds, and of all others, those after which the next draft was there
  without a step;
- *late*: how long a verdict waited for the step under way, draft steps a round;
- *gain*: time without preparing over time with it.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import Tensor

from research.command import run, table
from research.thinned_draft import Text
from research.trees import Ranks, ranked, ranking_parser
from services.contract.types import CommitDraft, Draft, OpenDraft, ResolvedSampling, VerifyMode
from services.drafter.core import DrafterCore
from services.drafter.methods.model.branches import PrepareRules
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.session import common_prefix
from services.engine.native import NativeEngine
from services.engine.port import Segment

WAITS = {"no": (False,), "yes": (True,), "both": (False, True)}


@dataclass(frozen=True, slots=True)
class Pace:
    """In draft steps: a verification, a row beside a step's first, a draft's way to a round.

    `waits`: a round has one draft token at least.
    """

    window: int
    waits: bool
    verify: float
    row: float
    hop: float


class Counted:
    """An engine that tells how many rows its forwards had since it was asked last."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self._rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        """One forward of the engine."""
        self._rows += sum(len(segment.token_ids) for segment in segments)
        return self._engine.forward(segments)

    def taken(self) -> int:
        """Rows since this was asked last."""
        rows, self._rows = self._rows, 0
        return rows


class Timed:
    """A drafter with one session, on a clock that counts draft steps."""

    def __init__(self, engine: NativeEngine, rules: PrepareRules | None, row: float) -> None:
        self._engine, self._row = Counted(engine), row
        self.drafter = ModelDrafter(self._engine, prepare=rules)
        self.core = DrafterCore(
            {"model": self.drafter}, emit=lambda _, event: self._take(event), worker_id="bench"
        )
        self.now = 0.0
        self.tail: list[tuple[float, int]] = []
        """Drafted tokens, each with the moment it was there."""

    def _take(self, event: object) -> None:
        # Of the step under way: `step` knows how long it took.
        if isinstance(event, Draft):
            self.tail += [(-1.0, token) for token in event.tree.token_ids]

    def step(self) -> bool:
        """One step of the core; False = it rests."""
        worked = self.core.step()
        rows = self._engine.taken()
        self.now += 1.0 + self._row * (rows - 1) if rows else 0.0
        self.tail = [(self.now if at < 0.0 else at, token) for at, token in self.tail]
        return worked

    def until(self, moment: float) -> float:
        """Work until then; how long after it a step goes on."""
        while self.now < moment and self.step():
            pass
        self.now = max(self.now, moment)
        return self.now - moment


class Answer:
    """One answer, round by round; its verdicts are known beforehand."""

    def __init__(self, timed: Timed, pace: Pace, truth: Sequence[int], ranks: Ranks) -> None:
        self._timed, self._pace, self._truth, self._ranks = timed, pace, truth, ranks
        self._committed, self._epoch = 0, 1
        self._free = timed.now
        self.tally: Counter[str] = Counter()

    def decode(self) -> Counter[str]:
        """All rounds, counted."""
        started = self._free
        while self._committed < len(self._truth):
            self._round()
        self.tally["time"] = round(1000 * (self._free - started))
        self.tally["tokens"] = len(self._truth)
        return self.tally

    def _round(self) -> None:
        leaves = self._leaves()
        block = self._tail(leaves)
        self._free = leaves + self._pace.verify
        late = self._timed.until(self._free)
        accepted = common_prefix(self._truth, self._committed, block)
        rejected = accepted < len(block)
        self.tally.update(rounds=1, drafted=len(block), late=round(1000 * late))
        if rejected:
            self.tally.update(("rejected", f"choice {self._ranks[self._committed + accepted]}"))
        self._commit(block, accepted)
        hits = self._timed.drafter.prepared.hits
        if self._committed < len(self._truth):
            self._timed.step()
        ready = self._timed.drafter.prepared.hits - hits
        self.tally["ready, rejected" if rejected else "ready, other"] += ready

    def _leaves(self) -> float:
        """When the next round leaves, which a draft may have to be waited for."""
        leaves = self._free + self._pace.hop
        self._timed.until(leaves)
        while self._pace.waits and not self._timed.tail and self._timed.step():
            pass
        first = self._timed.tail[0][0] if self._pace.waits and self._timed.tail else 0.0
        return max(leaves, first)

    def _tail(self, moment: float) -> list[int]:
        """What is drafted behind the committed text by then."""
        return [token for at, token in self._timed.tail if at <= moment]

    def _commit(self, block: Sequence[int], accepted: int) -> None:
        """What is accepted, and the target's own token: drafts beyond it may go on."""
        base = self._committed
        own = self._truth[base + accepted : base + accepted + 1]
        self._committed += accepted + len(own)
        tail = self._tail(float("inf"))
        agrees = tail[: accepted + 1] == [*block[:accepted], *own][: len(tail)]
        self._epoch += not agrees
        self._timed.tail = self._timed.tail[accepted + 1 :] if agrees else []
        self._timed.core.handle(0, CommitDraft("s", self._epoch, base, (*block[:accepted], *own)))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every pace, with and without preparing."""
    mode, draft, texts, ranks = ranked(arguments)
    study = Study(draft, mode, texts, ranks)
    rules = PrepareRules(arguments.prepare_tokens, arguments.prepare_rows, arguments.prepare_depth)
    rows = []
    for window, waits in product(arguments.windows, WAITS[arguments.waits]):
        pace = Pace(window, waits, arguments.verify, arguments.row, arguments.hop)
        rows.append(_row(pace, study.tally(pace, None), study.tally(pace, rules)))
    return {"rows": rows}


@dataclass(frozen=True, slots=True)
class Study:
    """The answers, and how the draft model ranks their tokens."""

    draft: NativeEngine
    mode: VerifyMode
    texts: Sequence[Text]
    ranks: Sequence[Ranks]

    def tally(self, pace: Pace, rules: PrepareRules | None) -> Counter[str]:
        """All answers at one pace."""
        total: Counter[str] = Counter()
        for seed, (text, ranks) in enumerate(zip(self.texts, self.ranks, strict=True)):
            total += self._one(Timed(self.draft, rules, pace.row), pace, text, ranks, seed)
        return total

    def _one(self, timed: Timed, pace: Pace, text: Text, ranks: Ranks, seed: int) -> Counter[str]:
        ids: list[int] = text.token_ids[0].tolist()
        prompt, truth = tuple(ids[: text.start]), ids[text.start :]
        sampling = ResolvedSampling(max_tokens=len(truth))
        opening = OpenDraft("s", 1, prompt, (), self.mode, sampling, seed=seed, window=pace.window)
        timed.core.handle(0, opening)
        while not timed.tail:
            timed.step()
        tally = Answer(timed, pace, truth, ranks).decode()
        figures = timed.drafter.prepared
        tally.update(steps=figures.steps, fed=figures.fed, delivered=figures.delivered)
        timed.drafter.close((0, "s"))
        return tally


def _row(pace: Pace, off: Counter[str], on: Counter[str]) -> dict[str, Any]:
    rejected, other = max(1, on["rejected"]), max(1, on["rounds"] - on["rejected"])
    tokens, late = (
        " > ".join(f"{one[name] / one['rounds'] / unit:.2f}" for one in (off, on))
        for name, unit in (("tokens", 1), ("late", 1000))
    )
    return {
        "window": pace.window,
        "waits": "yes" if pace.waits else "no",
        "tokens a round": tokens,
        "late a round": late,
        "rejected": on["rejected"] / on["rounds"],
        "second": on["choice 1"] / rejected,
        "third": on["choice 2"] / rejected,
        "ready": on["ready, rejected"] / rejected,
        "others": on["ready, other"] / other,
        "steps": on["steps"] / on["rounds"],
        "given": on["delivered"] / on["rounds"],
        "gain": off["time"] / on["time"],
    }


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    rows = report["rows"]
    kinds = {name: ".2f" if isinstance(one, float) else "" for name, one in rows[0].items()}
    return table(kinds | {"gain": ".3f"}, rows)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = ranking_parser(__doc__, draft="smollm2-135m-instruct-draft", prompts=12, tokens=48)
    made.add_argument("--windows", type=int, nargs="+", default=[4, 6, 8, 16])
    made.add_argument(
        "--waits", choices=WAITS, default="both", help="whether a round waits for a draft"
    )
    made.add_argument("--verify", type=float, default=6.4, help="draft steps a verification takes")
    made.add_argument("--row", type=float, default=0.06, help="draft steps that a row adds")
    made.add_argument("--hop", type=float, default=0.1, help="draft steps from verdict to round")
    made.add_argument("--prepare-tokens", type=int, default=16)
    made.add_argument("--prepare-depth", type=int, default=4)
    made.add_argument("--prepare-rows", type=int, default=4)
    return made


if __name__ == "__main__":
    run(parser(), measure, show)
