"""See `research.device`."""

import argparse
import sys
from typing import Any

from bench.output import say
from research.command import measuring_parser, run
from research.device import __doc__ as description
from research.device.check import Finding, check
from research.device.speed import SHAPES, Timing, random_model, speed
from services.engine.spec import ModelSpec
from services.engine.threads import pin


def _measured(asked: argparse.Namespace) -> dict[str, Any]:
    pin(asked.threads)
    say("the same rows as on the CPU")
    dtypes = sorted({"float32", asked.dtype}, reverse=True)
    findings = check(random_model("tiny", "cpu", "float32"), asked.device, dtypes)
    timings: list[Timing] = []
    if not asked.check_only and all(finding.right for finding in findings):
        say(f"steps of {asked.shape}, random weights")
        capacity = max(asked.sessions) * (asked.text + 128) + 1024
        spec = ModelSpec(
            asked.shape, asked.dtype, asked.device, asked.threads, kv_capacity_tokens=capacity
        )
        model = random_model(asked.shape, asked.device, asked.dtype)
        timings = speed(model, spec, asked.sessions, asked.text)
    return {
        "right": all(finding.right for finding in findings),
        "findings": [finding._asdict() for finding in findings],
        "timings": [timing._asdict() for timing in timings],
    }


def _show(report: dict[str, Any]) -> str:
    findings = [Finding(**content) for content in report["findings"]]
    timings = [Timing(**content) for content in report["timings"]]
    asked = report["asked"]
    lines = [f"{asked['device']}, tiny random model, against float32 on the CPU"]
    lines += [
        f"  {one.dtype:<10}{one.name:<44}{one.figure:10.1e} of {one.tolerance:.0e}"
        f"{'' if one.right else '  WRONG'}"
        for one in findings
    ]
    if timings:
        lines.append(f"{asked['shape']}, random weights, {asked['dtype']}, {asked['text']} tokens")
        lines += [
            f"  {one.name:<44}{one.ms:10.2f} ms {one.over_floor:7.2f} times the floor"
            for one in timings
        ]
    return "\n".join(lines)


def main() -> None:
    """Check, then measure."""
    made = measuring_parser(description)
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--device", default="cpu")
    made.add_argument("--shape", choices=tuple(SHAPES), default="135m")
    made.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32])
    made.add_argument("--text", type=int, default=512, help="tokens of each session's text")
    made.add_argument("--check-only", action="store_true", help="no timings")
    if not run(made, _measured, _show)["right"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
