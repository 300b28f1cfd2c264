"""See `bench.device`."""

import argparse
import sys
from typing import Any, get_args

from bench.command import measuring_parser, run, say
from bench.device import __doc__ as description
from bench.device.check import Finding, check, natively
from bench.device.on_vllm import by_vllm, steps_by_vllm
from bench.device.shapes import SHAPES, random_model
from bench.device.speed import Timing, Wanted, speed
from services.engine.native import NativeEngine
from services.engine.spec import ENGINES, Execution
from services.engine.threads import pin


def _measured(asked: argparse.Namespace) -> dict[str, Any]:
    pin(asked.threads)
    findings: list[Finding] = []
    if not asked.steps_only:
        say("the same rows as on the CPU")
        findings = _findings(asked)
    right = all(finding.right for finding in findings)
    report: dict[str, Any] = {
        "right": right,
        "findings": [finding._asdict() for finding in findings],
        "timings": [],
    }
    if right and not asked.check_only:
        say(f"steps of {asked.shape}, random weights")
        report["timings"] = [timing._asdict() for timing in _timings(asked)]
    return report


def _findings(asked: argparse.Namespace) -> list[Finding]:
    model, dtypes = random_model("tiny", "cpu", "float32"), {"float32", asked.dtype}
    answer = natively(model, asked.device)
    if asked.engine == "vllm":
        answer = by_vllm(asked.vllm_python, model, asked.device, asked.threads)
    return check(model, sorted(dtypes, reverse=True), answer)


def _timings(asked: argparse.Namespace) -> list[Timing]:
    wanted = Wanted(
        asked.shape,
        asked.dtype,
        asked.device,
        asked.threads,
        asked.sessions,
        asked.text,
        execution=asked.execution,
        memory_share=asked.memory_share,
        profile=asked.profile,
    )
    if asked.engine == "vllm":
        return steps_by_vllm(asked.vllm_python, wanted)
    model = random_model(asked.shape, asked.device, asked.dtype)
    engine = NativeEngine.taking(model, wanted.spec(asked.shape))
    return speed(engine, wanted, asked.device)


def _show(report: dict[str, Any]) -> str:
    findings = [Finding(**content) for content in report["findings"]]
    timings = [Timing(**content) for content in report["timings"]]
    asked = report["asked"]
    lines = []
    if findings:
        on = f"{asked['engine']} on {asked['device']}"
        lines.append(f"{on}, tiny random model, against the native engine's float32 on the CPU")
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
        lines += [f"--- {one.name}\n{one.profile}" for one in timings if one.profile]
    return "\n".join(lines)


def main() -> None:
    """Check, then measure."""
    made = measuring_parser(description)
    made.add_argument("--engine", choices=ENGINES, default="native")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--device", default="cpu")
    made.add_argument("--shape", choices=tuple(SHAPES), default="135m")
    made.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32])
    made.add_argument("--text", type=int, default=512, help="tokens of each session's text")
    part = made.add_mutually_exclusive_group()
    part.add_argument("--check-only", action="store_true", help="no timings")
    part.add_argument("--steps-only", action="store_true", help="no check")
    made.add_argument("--execution", choices=get_args(Execution), default="eager", help="of vLLM")
    made.add_argument("--memory-share", type=float, help="of the device's, that vLLM may take")
    made.add_argument("--profile", action="store_true", help="where each step's milliseconds go")
    made.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="that has vLLM")
    if not run(made, _measured, _show)["right"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
