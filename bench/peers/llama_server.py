"""llama.cpp's server from the wheel `xllamacpp`, by flags of its own `llama-server`.

It runs in an environment that holds this wheel alone (`make setup-llama`), so it imports nothing
of Paceline.
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag, kind in (("model", str), ("host", str), ("port", int), ("spec-type", str)):
        parser.add_argument(f"--{flag}", type=kind, default="")
    for flag in ("threads", "threads-batch", "parallel", "ctx-size"):
        parser.add_argument(f"--{flag}", type=int, required=True)
    asked = parser.parse_args()
    made = xllamacpp.CommonParams()
    made.model.path, made.hostnames, made.port = asked.model, [asked.host], asked.port
    made.cpuparams.n_threads = asked.threads
    made.cpuparams_batch.n_threads = asked.threads_batch
    made.n_parallel, made.n_ctx, made.ui = asked.parallel, asked.ctx_size, False
    if asked.spec_type:
        kind = asked.spec_type.replace("-", "_").upper()
        types = xllamacpp.common_speculative_type
        made.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    _serving = xllamacpp.Server(made)
    signal.pause()


if __name__ == "__main__":
    main()
