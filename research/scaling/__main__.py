"""The scalers' own expressions while load comes and goes: `record` them, then `show` them.

    python -m research.scaling record --out scaling.json     needs Prometheus; some nine minutes
    python -m research.scaling show scaling.json

The expressions are those of the ScaledObjects in k8s/components/keda. docs/scaling.md tells
how to read them.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.output import result_file
from research.command import say
from research.scaling.manifests import queries
from research.scaling.phases import parse_phases
from research.scaling.record import PHASES, TIMES, RecordOptions, record
from research.scaling.recording import read_recording, table, write_recording
from services.cluster.flags import complain
from services.cluster.lifetime import unless_stopped
from services.cluster.progress import INTERRUPTED
from services.contract.errors import PacelineError, StartError
from testkit.prometheus import PrometheusError


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    asked = _parser().parse_args(arguments)
    try:
        status: int = asked.run(asked, arguments)
    except (PacelineError, PrometheusError, OSError) as error:
        return complain("bench scaling", StartError(str(error)), status=1)
    return status


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m research.scaling",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="load on a real cluster, its metrics to a file")
    recording.set_defaults(run=_record)
    recording.add_argument("--phases", default=PHASES, help=f"SESSIONS:SECONDS,… ({PHASES})")
    recording.add_argument("--times", default=TIMES, help=f"of synthetic workers ({TIMES})")
    recording.add_argument("--tokens", type=int, default=192, help="length of a session (192)")
    recording.add_argument(
        "--kv-tokens", type=int, default=36_000, help="tokens a verifier holds (36000)"
    )
    recording.add_argument("--out", type=Path, help="left out: a new file in bench/results")
    showing = commands.add_parser("show", help="what the expressions said, as a table")
    showing.set_defaults(run=_show)
    showing.add_argument("file", type=Path)
    showing.add_argument("--every", type=float, default=60.0, help="seconds from line to line")
    return made


def _record(asked: argparse.Namespace, arguments: Sequence[str]) -> int:
    options = RecordOptions(parse_phases(asked.phases), asked.times, asked.tokens, asked.kv_tokens)
    path = asked.out or result_file("scaling")
    done = asyncio.run(unless_stopped(record(options, queries(), arguments, say)))
    if done is None:
        return INTERRUPTED
    write_recording(path, done)
    print(f"written to {path}")
    return 0


def _show(asked: argparse.Namespace, _arguments: Sequence[str]) -> int:
    print(table(read_recording(asked.file), asked.every))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
