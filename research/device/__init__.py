"""A device: whether the engine computes there what it computes on the CPU, and how fast.

    python -m research.device --device cuda --dtype bfloat16 --shape 1b

First a tiny random model answers the same texts on the device, in float32 and in `--dtype`,
as on the CPU in float32: every row teacher-forced (`check`). A difference beyond the
tolerance ends it with 1. Then steps of a model of `--shape` with random weights are timed beside
what reading its weights and the K/V takes at the bandwidth of a copy (`speed`).
"""
