"""A Python without vLLM for `bench.device.on_vllm`: the native engine stands in for it."""

import sys
from dataclasses import replace
from pathlib import Path

from services.engine.spec import ModelSpec


def python(folder: Path) -> str:
    """Its path; whichever module it is to run, it runs `main`."""
    file = folder / "python"
    code = "from tests.bench.native_as_vllm import main; main()"
    file.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "{code}" "$@"\n')
    file.chmod(0o755)
    return str(file)


def main() -> None:
    """Answer as the process with vLLM does."""
    from bench.device import on_vllm
    from services.engine.native import NativeEngine
    from services.engine.vllm import loading

    def load(spec: ModelSpec) -> NativeEngine:
        assert spec.engine == "vllm"
        return NativeEngine.load(replace(spec, engine="native"))

    loading.load = load
    on_vllm.main()
