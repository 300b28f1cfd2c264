"""The `paceline` command. Each subcommand imports its parts when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from services.contract.errors import not_here, out_of_room
from services.runtime.polling import poll_in_one_thread

if TYPE_CHECKING:
    from services.cluster.flags import Flags

SUMMARY = "Large language models served faster, with the same output distribution."


@dataclass(frozen=True, slots=True)
class Command:
    """What a command does, its options as `module:class`, and the module of its `run_<name>`.

    `module` empty: that of the options. `roles`: its file has a section for each process.
    """

    summary: str
    options: str = ""
    module: str = ""
    roles: bool = False

    def kind(self) -> Any:
        """The options class."""
        module, _, name = self.options.partition(":")
        return getattr(import_module(module), name)

    def run(self, name: str, options: Any) -> int:
        """Run it; the exit status."""
        module = import_module(self.module or self.options.partition(":")[0])
        status: int = getattr(module, runner(name))(options)
        return status


def runner(name: str) -> str:
    """What runs a command in its module."""
    return f"run_{name.replace('-', '_').replace(' ', '_')}"


PROCESSES = {
    "orchestrator": Command("Run one orchestrator (serves clients)."),
    "drafter": Command("Run one drafter (proposes tokens)."),
    "verifier": Command("Run one verifier (the target model)."),
}
COMMANDS = PROCESSES | {
    "up": Command(
        "Start a whole local cluster as separate processes, and keep it alive until Ctrl-C.",
        "services.console.up:UpOptions",
        roles=True,
    ),
    "doctor": Command(
        "Say what this machine has to run models, and what would be chosen.",
        "services.console.doctor:DoctorOptions",
    ),
    "generate": Command(
        "Generate text: streamed as it is committed, with a summary at the end.",
        "services.console.generate:GenerateOptions",
    ),
    "demo": Command(
        "Answer three prompts through a cluster of real processes, then end it.",
        "services.console.demo:DemoOptions",
    ),
    "bench": Command(
        "Measure plain decoding, pacings, drafters and peers on the same prompts, taking turns.",
        "bench.options:BenchOptions",
        "bench.main",
    ),
    "train ngrams": Command(
        "Learn what a target says after a few tokens, for drafting without a model; resumable.",
        "services.training.options:NgramOptions",
        "services.console.train",
    ),
    "train head": Command(
        "Train an EAGLE-3 head for a target, from texts that it writes; resumable.",
        "services.training.options:HeadOptions",
        "services.console.train",
    ),
    "train lookahead": Command(
        "Train look-ahead embeddings (PaSS), with which a target drafts for itself; resumable.",
        "services.training.options:LookaheadOptions",
        "services.console.train",
    ),
    "train skip-mask": Command(
        "Find sub-layers that a target can skip when it drafts for itself; resumable.",
        "services.training.options:SkipMaskOptions",
        "services.console.train",
    ),
    "plan": Command(
        "Say what nodes a traffic needs and what they cost, from what a bench measured.",
        "bench.plan:PlanOptions",
    ),
    "trace": Command(
        "Show where each millisecond and each drafted token of a session went.",
        "services.console.trace:TraceOptions",
    ),
    "top": Command(
        "Watch workers, sessions, tokens per second and acceptance, until Ctrl-C.",
        "services.console.top:TopOptions",
    ),
    "token": Command(
        "Draw a client token; print it, and its entry for the orchestrator's --tokens-file.",
        "services.console.token:TokenOptions",
    ),
}

RENAMED = {
    "learn-ngrams": "train ngrams",
    "train-lookahead": "train lookahead",
    "tune-skip": "train skip-mask",
}
"""Names that commands had in the last release; they go with the next one."""
GONE = {"distill": "draft models are made no longer; use paceline train head, or train ngrams"}


def main() -> None:
    """Run the command line, and exit."""
    poll_in_one_thread()
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and not out_of_room(error):
            raise
        status = _unwritten(error)
    sys.exit(status)


def _unwritten(error: OSError) -> int:
    """The status of a command whose words nobody reads, or that a full disk ended."""
    # What is left goes nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if out_of_room(error):
        where = f" for {error.filename}" if error.filename else ""
        print(f"paceline: the disk has no room{where}: make some", file=sys.stderr)
    return 1


def run(words: Sequence[str]) -> int:
    """Run one command; the exit status. 2 = it is not to be run so; one line says why."""
    name, *arguments = _renamed(words) or [""]
    if name == "train" and arguments:
        name, *arguments = f"train {arguments[0]}", *arguments[1:]
    if name in ("--help", "train --help"):
        print(overview())
        return 0
    if not words:
        print(overview(), file=sys.stderr)
        return 2
    if name in GONE:
        print(f"paceline {name}: {GONE[name]}", file=sys.stderr)
        return 2
    if name not in COMMANDS:
        kind = "flag" if name.startswith("-") else "command"
        print(f"paceline: there is no {kind} {name}; see paceline --help", file=sys.stderr)
        return 2
    try:
        return _serve(name, arguments) if name in PROCESSES else _run(name, arguments)
    except ModuleNotFoundError as error:
        print(f"paceline {name}: {not_here(error)}", file=sys.stderr, flush=True)
        return 1


def _renamed(words: Sequence[str]) -> Sequence[str]:
    """The command line with today's name of its command."""
    if not words or words[0] not in RENAMED:
        return words
    new = RENAMED[words[0]]
    print(f"paceline {words[0]}: this is paceline {new} now", file=sys.stderr)
    return [*new.split(), *words[1:]]


def _serve(name: str, arguments: Sequence[str]) -> int:
    from services.cluster.process import run_process

    return run_process(name, arguments)


def _run(name: str, arguments: Sequence[str]) -> int:
    from services.cluster.flags import complain
    from services.contract.errors import StartError

    command, flags = COMMANDS[name], flags_of(name)
    try:
        flags.parse(arguments)
        sections = {"sections": flags.sections} if command.roles else {}
        options = flags.read(command.kind(), **sections)
    except StartError as error:
        return complain(name, error, status=2)
    return command.run(name, options)


def flags_of(name: str) -> Flags:
    """The flags of a command."""
    from services.cluster.flags import Flags

    if name in PROCESSES:
        own: Flags = import_module("services.cluster.process").flags_of(name)
        return own
    command = COMMANDS[name]
    roles = {role: partial(flags_of, role) for role in PROCESSES} if command.roles else None
    return Flags(f"paceline {name}", command.summary, command.kind(), roles=roles)


def overview() -> str:
    """What `paceline --help` prints."""
    rows = [f"  {name:<16} {command.summary}" for name, command in COMMANDS.items()]
    flags = ["Flags:", f"  {'--help':<16} Show this message and exit."]
    usage = "Usage: paceline COMMAND [flags]"
    return "\n".join([usage, "", SUMMARY, "", "Commands:", *rows, "", *flags])
