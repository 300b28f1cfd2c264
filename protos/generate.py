"""Writes the stubs beside the protos, or with --check compares them.

The tool's version is the floor of `grpcio` and `protobuf` in pyproject.toml:
generated code refuses older runtimes, so a newer tool would raise that floor.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

TOOL_VERSION = "1.85.1"
ROOT = Path(__file__).resolve().parent
PROTOS = sorted(path.relative_to(ROOT) for path in ROOT.glob("paceline/v1/*.proto"))


def generate(target: Path) -> None:
    """Write every stub under `target`, in the folders of the protos."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    arguments = ["protoc", f"-I{ROOT}", f"-I{well_known}", *outputs, *map(str, PROTOS)]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed")


def stubs(root: Path) -> dict[Path, str]:
    """The text of every stub under `root`, by relative path."""
    files = sorted(root.glob("paceline/v1/*_pb2*.py*"))
    return {path.relative_to(root): path.read_text() for path in files}


def check() -> int:
    """Compare the checked-in stubs with fresh ones; the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, kept = stubs(Path(folder)), stubs(ROOT)
    stale = sorted(path for path in fresh | kept if fresh.get(path) != kept.get(path))
    for path in stale:
        print(f"protos/{path} is not what the protos give; run: make protos", file=sys.stderr)
    return 1 if stale else 0


def main() -> int:
    """Generate, or check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    if (found := version("grpcio-tools")) != TOOL_VERSION:
        sys.exit(f"grpcio-tools {TOOL_VERSION} is needed to generate the stubs, found {found}")
    if arguments.check:
        return check()
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
