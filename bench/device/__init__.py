"""A device: whether an engine computes there what it computes on the CPU, and how fast.

    python -m bench.device --device cuda --dtype bfloat16 --shape 1b
    python -m bench.device --engine vllm --execution full --device cuda --shape 8b --profile

First a tiny random model answers the same texts on the device, in float32 and in `--dtype`,
as the native engine on the CPU in float32: every row teacher-forced (`check`). A difference
beyond the tolerance ends it with 1. Then steps of a model of `--shape` with random weights are
timed (one token, a chain, a tree) beside what reading its weights and the K/V takes at the
bandwidth of a copy (`speed`), and taken apart (`profile`).

vLLM computes in processes of its own Python, `--vllm-python` (`on_vllm`). `wide` makes a target
that speaks as a small model does and costs what a large one does.
"""
