"""One process of Paceline: `paceline orchestrator`, `drafter` or `verifier`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from services.cluster import beside
from services.cluster.flags import Flags, complain, one_line
from services.contract.errors import PacelineError, StartError, not_here
from services.runtime.logs import setup_logging
from services.runtime.options import Settings
from services.runtime.telemetry import trace_ids
from services.runtime.tether import die_with


class ProcessSettings(Settings):
    """What every process has besides its own settings."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", title="logs and the process", description="least serious log lines to write"
    )
    log_json: bool = Field(False, description="write log lines as JSON objects")
    tether: int | None = Field(None, description="end when this parent process is gone")


@dataclass(frozen=True, slots=True)
class Role:
    """Where a role's settings and its `run` are; imported only when it runs."""

    package: str
    settings: str

    def settings_class(self) -> type[Settings]:
        """The settings class of this role."""
        kind: type[Settings] = getattr(
            importlib.import_module(f"{self.package}.settings"), self.settings
        )
        return kind

    def run(self, settings: Any) -> int:
        """Serve until told to stop; the exit status."""
        status: int = importlib.import_module(f"{self.package}.main").run(settings)
        return status


ROLES = {
    "orchestrator": Role("orchestrator", "OrchestratorSettings"),
    "drafter": Role("services.drafter", "DrafterSettings"),
    "verifier": Role("services.verifier", "VerifierSettings"),
}


def flags_of(name: str) -> Flags:
    """The flags of a process."""
    kinds: list[type] = [ROLES[name].settings_class(), ProcessSettings]
    kinds += [beside.BesideSettings] if name == "verifier" else []
    summary, helps = kinds[0].__doc__ or "", ("--help", "-h")
    return Flags(f"paceline {name}", summary, *kinds, helps=helps, roles={})


def run_process(name: str, arguments: Sequence[str]) -> int:
    """Run one role until it is told to stop; the exit status.

    1 = it could not start or failed, 2 = a setting is not allowed; one line says why.
    """
    role, flags = ROLES[name], flags_of(name)
    try:
        flags.parse(arguments)
        process = flags.read(ProcessSettings)
    except StartError as error:
        return complain(name, error, status=2)
    setup_logging(json=process.log_json, level=process.log_level, context=trace_ids)
    say = _log if process.log_json else complain
    try:
        settings: Any = flags.read(role.settings_class())
        drafter = beside.drafter_settings(flags, settings) if name == "verifier" else None
    except StartError as error:
        return say(name, error, status=2)
    try:
        if process.tether is not None:
            die_with(process.tether)
        return role.run(settings) if drafter is None else beside.run(settings, drafter)
    except PacelineError as error:
        return say(name, error, status=1)
    except ModuleNotFoundError as error:
        return say(name, not_here(error), status=1)
    except KeyboardInterrupt:
        return 130


def _log(name: str, error: Exception, status: int) -> int:
    """What `complain` says, as a log line."""
    logging.getLogger(f"paceline.{name}").error("%s", one_line(error))
    return status
