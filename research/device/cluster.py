"""AMUSD's experiment (McDanel 2024, 2410.17375): a target and a draft model, each on its device.

`paceline bench` decodes without drafts, with drafts in lockstep, and with drafts that overlap
the verification, one prompt at a time. The table has the published runs below.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from bench.options import PLAIN
from bench.synthetic.traces import DRAFTED, TRACES, Trace, load_traces
from research.command import table
from services.contract.errors import StartError

WAYS = {
    PLAIN: "no drafts",
    "fixed": f"in lockstep, {DRAFTED} tokens a round",
    "eager": "overlapped, as in AMUSD",
    "thompson": "overlapped, as we pace it",
}
COLUMNS = ("", "tokens/s", "× no drafts", "accepted", "tokens a target call")


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is run. `devices`: of target and draft model, the same one twice to share it."""

    target: str
    draft: str
    engine: str
    dtype: str
    devices: tuple[str, str]
    prompts: str = "12"
    tokens: int = 128
    repeats: int = 3

    @property
    def flags(self) -> list[str]:
        """Those of `paceline bench`."""
        pacings = ",".join(way for way in WAYS if way != PLAIN)
        given = {
            "--target": self.target,
            "--draft": self.draft,
            "--method": "model",
            "--engine": self.engine,
            "--dtype": self.dtype,
            "--verifier-device": self.devices[0],
            "--drafter-device": self.devices[1],
            "--pacings": pacings,
            "--fixed-tokens": DRAFTED,
            "--set": self.prompts,
            "--max-tokens": self.tokens,
            "--repeats": self.repeats,
        }
        return [str(word) for pair in given.items() for word in pair]


def devices(device: str, drafter: str | None, count: int) -> tuple[str, str]:
    """Of the target, and of the draft model: what was asked for, or the next of `count`."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return device, drafter or device
    own = int(index or 0)
    return f"{kind}:{own}", drafter or f"{kind}:{(own + 1) % max(1, count)}"


def measure(python: str, experiment: Experiment) -> dict[str, Any]:
    """What `paceline bench` finds, without its trials. `python` has the engine."""
    with TemporaryDirectory() as folder:
        summary, out = Path(folder) / "summary.json", Path(folder) / "bench.json"
        command = [python, "-m", "paceline", "bench", *experiment.flags]
        command += ["--out", str(out), "--summary", str(summary)]
        status = subprocess.run(command, check=False).returncode
        if status:
            raise StartError(f"paceline bench ended with {status}: {' '.join(command)}")
        found: dict[str, Any] = json.loads(summary.read_text())
    return found


def show(found: Mapping[str, Any]) -> str:
    """What was measured, and below it what was published."""
    setting = found["setting"]
    title = f"{setting['target']}, drafts by {setting['drafting']}, on {setting['devices']}"
    [level] = found["levels"]
    rows = [*map(_measured, level["figures"])]
    for trace in load_traces(TRACES, "--cluster"):
        rows += _published(trace)
    cells = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return f"{title}\n{table(dict.fromkeys(COLUMNS, ''), cells)}"


def _measured(figures: Mapping[str, Any]) -> Sequence[str]:
    drafts = figures["drafted_per_token"] > 0
    name = figures["configuration"]
    return (
        WAYS.get(name, name),
        _median(figures["decoding"]),
        _median(figures["decoding_ratio"]),
        f"{figures['acceptance_rate']:.0%}" if drafts else "–",
        f"{figures['block_efficiency']:.2f}",
    )


def _median(spread: Mapping[str, float] | None) -> str:
    return "–" if spread is None else f"{spread['median']:.2f}"


def _published(trace: Trace) -> Iterator[Sequence[str]]:
    plain, emitted = trace.plain.ms_per_token, fmean(trace.sd.accepted)
    drafted = (f"{(emitted - 1) / DRAFTED:.0%}", f"{emitted:.2f}")
    ways = {
        PLAIN: (plain, "–", "1.00"),
        "fixed": (trace.sd.ms_per_token, *drafted),
        "eager": (trace.amusd.ms_per_token, "–", "–"),
    }
    for way, (ms, accepted, calls) in ways.items():
        ratio = "–" if way == PLAIN else f"{plain / ms:.2f}"
        yield f"AMUSD, {trace.name}: {WAYS[way]}", f"{1e3 / ms:.2f}", ratio, accepted, calls
