"""From a GenerateRequest to a SessionSpec, or to an InvalidRequest that names the field."""

from orchestrator.requests.build import build_spec
from orchestrator.requests.inputs import check_counts
from orchestrator.requests.model import ModelDefaults, ServedModel, parse_defaults
from orchestrator.requests.record import dump_spec, load_spec
from orchestrator.requests.spec import SessionSpec

__all__ = [
    "ModelDefaults",
    "ServedModel",
    "SessionSpec",
    "build_spec",
    "check_counts",
    "dump_spec",
    "load_spec",
    "parse_defaults",
]
