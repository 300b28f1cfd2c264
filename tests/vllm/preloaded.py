"""vLLM, as our engine has it read on a CPU."""

from services.engine.vllm import loading

loading.prepare("cpu")

import vllm.entrypoints.llm  # noqa: E402
import vllm.v1.engine.core  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: E402, F401
