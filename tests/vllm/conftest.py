"""Files named test_with_… need vLLM, which lives in an environment of its own: make test-vllm."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_with_*.py"]
