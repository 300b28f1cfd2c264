"""Writes the stubs beside the protos, or with --check compares them.

The tool's version is the floor of `grpcio` and `protobuf` in pyproject.toml:
generated code refuses older runtimes, so a newer tool would raise that floor.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Iterable
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

TOOL_VERSION = "1.85.1"
ROOT = Path(__file__).resolve().parent
PACKAGE = "paceline.v1"
ARGUMENTS = Path("paceline/_sampling.py")
HEAD = '''"""Written by `make protos`, not by hand: an argument for each field of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class SamplingOptions(TypedDict, total=False):
    """How to sample; what is left out has the server's default."""

'''
PROTOS = sorted(path.relative_to(ROOT) for path in ROOT.rglob("paceline/**/*.proto"))


def generate(target: Path) -> None:
    """Write every stub under `target`, in the folders of the protos, and the client's arguments."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    described = target / "descriptors"
    outputs.append(f"--descriptor_set_out={described}")
    arguments = ["protoc", f"-I{ROOT}", f"-I{well_known}", *outputs, *map(str, PROTOS)]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed")
    files = FileDescriptorSet.FromString(described.read_bytes()).file
    described.unlink()
    (target / ARGUMENTS).write_text(sampling_arguments(files))


def sampling_arguments(files: Iterable[FileDescriptorProto]) -> str:
    """The client's arguments, one for each field of SamplingParams."""
    [params] = [m for file in files for m in file.message_type if m.name == "SamplingParams"]
    maps = {f".{PACKAGE}.SamplingParams.{inner.name}" for inner in params.nested_type}
    fields = "".join(f"    {one.name}: {_type_of(one, maps)}\n" for one in params.field)
    return HEAD + fields


def _type_of(field: FieldDescriptorProto, maps: Collection[str]) -> str:
    if field.type == field.TYPE_MESSAGE:
        known = f".{PACKAGE}.FormatStart"
        other = "str | Sequence[int] | bool" if field.type_name == known else "Sequence[str]"
        return "Mapping[int, float]" if field.type_name in maps else other
    name = {field.TYPE_STRING: "str", field.TYPE_BOOL: "bool", field.TYPE_FLOAT: "float"}
    kind = name.get(field.type, "int")
    if field.label != field.LABEL_REPEATED:
        return kind
    return "str | Sequence[str]" if kind == "str" else f"Sequence[{kind}]"


def stubs(root: Path) -> dict[Path, str]:
    """The text of every stub under `root`, by relative path."""
    made = (root.glob(f"paceline/**/*_pb2*.{kind}") for kind in ("py", "pyi"))
    files = [*sorted(chain.from_iterable(made)), root / ARGUMENTS]
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
