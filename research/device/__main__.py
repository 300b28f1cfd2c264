"""See `research.device`."""

import argparse
import sys
from typing import Any

import torch

from research.command import measuring_parser, run, say
from research.device import __doc__ as description
from research.device import cluster
from research.device.check import Finding, check, natively
from research.device.on_vllm import by_vllm, steps_by_vllm
from research.device.shapes import SHAPES, random_model
from research.device.speed import Timing, Wanted, speed
from services.engine.native import NativeEngine
from services.engine.spec import ENGINES
from services.engine.threads import pin


def _measured(asked: argparse.Namespace) -> dict[str, Any]:
    pin(asked.threads)
    say("the same rows as on the CPU")
    findings = _findings(asked)
    right = all(finding.right for finding in findings)
    report: dict[str, Any] = {
        "right": right,
        "findings": [finding._asdict() for finding in findings],
        "timings": [],
        "cluster": None,
    }
    if right and not asked.check_only:
        say(f"steps of {asked.shape}, random weights")
        report["timings"] = [timing._asdict() for timing in _timings(asked)]
        if asked.cluster:
            say("decoding by a target and a draft model")
            report["cluster"] = _clustered(asked)
    return report


def _findings(asked: argparse.Namespace) -> list[Finding]:
    model, dtypes = random_model("tiny", "cpu", "float32"), {"float32", asked.dtype}
    answer = natively(model, asked.device)
    if asked.engine == "vllm":
        answer = by_vllm(asked.vllm_python, model, asked.device, asked.threads)
    return check(model, sorted(dtypes, reverse=True), answer)


def _timings(asked: argparse.Namespace) -> list[Timing]:
    wanted = Wanted(
        asked.shape, asked.dtype, asked.device, asked.threads, asked.sessions, asked.text
    )
    if asked.engine == "vllm":
        return steps_by_vllm(asked.vllm_python, wanted)
    model = random_model(asked.shape, asked.device, asked.dtype)
    engine = NativeEngine.taking(model, wanted.spec(asked.shape))
    return speed(engine, wanted, asked.device)


def _clustered(asked: argparse.Namespace) -> dict[str, Any]:
    target, draft = asked.cluster
    experiment = cluster.Experiment(
        target,
        draft,
        asked.engine,
        asked.dtype,
        cluster.devices(asked.device, asked.drafter_device, torch.cuda.device_count()),
        asked.prompts,
        asked.tokens,
        asked.repeats,
    )
    python = asked.vllm_python if asked.engine == "vllm" else sys.executable
    return cluster.measure(python, experiment)


def _show(report: dict[str, Any]) -> str:
    findings = [Finding(**content) for content in report["findings"]]
    timings = [Timing(**content) for content in report["timings"]]
    asked = report["asked"]
    lines = [
        f"{asked['engine']} on {asked['device']}, tiny random model, "
        "against the native engine's float32 on the CPU"
    ]
    lines += [
        f"  {one.dtype:<10}{one.name:<44}{one.figure:10.1e} of {one.tolerance:.0e}"
        f"{'' if one.right else '  WRONG'}"
        for one in findings
    ]
    if timings:
        lines.append(f"{asked['shape']}, random weights, {asked['dtype']}, {asked['text']} tokens")
        lines += [
            f"  {one.name:<44}{one.ms:10.2f} ms {one.over_floor:7.2f} times the floor"
            f"{'' if one.own_ms is None else f', {one.own_ms:.2f} ms not the model'}"
            for one in timings
        ]
    if report["cluster"] is not None:
        lines.append(cluster.show(report["cluster"]))
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
    made.add_argument("--check-only", action="store_true", help="no timings")
    made.add_argument("--cluster", nargs=2, metavar=("TARGET", "DRAFT"), help="models to decode by")
    made.add_argument("--drafter-device", help="of DRAFT; left out: a second one, if there is one")
    made.add_argument("--prompts", default="12", help="for them: all, stratified or a number")
    made.add_argument("--tokens", type=int, default=128, help="of each answer")
    made.add_argument("--repeats", type=int, default=3, help="of each answer")
    made.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="that has vLLM")
    if not run(made, _measured, _show)["right"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
