"""Stand-ins for the processes that a supervisor keeps."""

from __future__ import annotations

import sys
from pathlib import Path

from services.cluster.supervisor import ProcessSpec

SERVE = """
import os, pathlib, sys, time
ready = pathlib.Path(sys.argv[1])
ready.write_text(f"127.0.0.1:{os.getpid()}\\n")
time.sleep(600)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE
SLOW = (
    """
import pathlib, sys, time
print("INFO services.engine.stages: starting: reads m.gguf", flush=True)
while not pathlib.Path(sys.argv[1] + ".on").exists():
    time.sleep(0.01)
print("INFO services.engine.stages: starting: packs its weights", flush=True)
while not pathlib.Path(sys.argv[1] + ".end").exists():
    time.sleep(0.01)
"""
    + SERVE
)
"""Goes on when there is a file beside its ready file."""
REFUSE = "import sys; print('starting'); sys.exit('weights.safetensors is not a weights file')"
NOISY = """
import os, sys
print("starting")
print("paceline verifier: weights.safetensors is not a weights file", file=sys.stderr, flush=True)
os.write(2, b"[rank0]:[W1130 ProcessGroupNCCL.cpp:1476] Warning: destroy_process_group()\\n")
sys.exit(1)
"""
"""A library writes of the end of a process behind what that says of itself."""


def child(folder: Path, name: str, program: str) -> ProcessSpec:
    ready = folder / f"{name}.ready"
    return ProcessSpec(
        name=name,
        argv=(sys.executable, "-c", program, str(ready)),
        ready_file=ready,
        log_file=folder / f"{name}.log",
    )
