"""A device: whether an engine computes there what it computes on the CPU, and how fast.

    python -m research.device --device cuda --dtype bfloat16 --shape 1b
    python -m research.device --engine vllm --device cuda --shape 8b --cluster TARGET DRAFT

First a tiny random model answers the same texts on the device, in float32 and in `--dtype`,
as the native engine on the CPU in float32: every row teacher-forced (`check`). A difference
beyond the tolerance ends it with 1. Then steps of a model of `--shape` with random weights are
timed beside what reading its weights and the K/V takes at the bandwidth of a copy (`speed`). At
last, with `--cluster`, a target and a draft model decode (`cluster`).

vLLM computes in processes of its own Python, `--vllm-python` (`on_vllm`).
"""
