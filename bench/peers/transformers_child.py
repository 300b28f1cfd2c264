"""`generate` of transformers: plain, with an assistant model, and with prompt lookup.

Everything but the model, the draft, dtype, cores and threads is transformers' default. The
assistant is the very draft model that our drafter runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bench.peers.lines import Lines, Request, serve_in_turn
from services.engine.native.loading import load_model
from services.engine.spec import ModelSpec
from services.engine.threads import pin

LOOKUP_TOKENS = 10
"""The default of transformers' own PromptLookupCandidateGenerator."""


def loaded(name: str, dtype: str, device: str) -> Any:
    """A model as transformers runs it."""
    model = load_model(ModelSpec(name, dtype, device)).model.eval()
    model.set_attn_implementation("sdpa")
    return model


class Watch:
    """A streamer of transformers; with the forwards it sees, each verification's draft."""

    def __init__(self, tell: Callable[[list[int], int], None], prompt_tokens: int) -> None:
        self.tokens = 0
        self.last: int | None = None
        self._tell = tell
        self._known = prompt_tokens
        self._fed = 0
        self._prompt_is_next = True

    def fed(self, count: int) -> None:
        """The target's next forward reads `count` tokens."""
        self._fed += count

    def put(self, value: Tensor) -> None:
        """New tokens, the prompt first."""
        if self._prompt_is_next:
            self._prompt_is_next = False
            return
        new = value.reshape(-1).tolist()
        drafted = max(0, self._fed - self._known)
        self._fed, self._known = 0, 1
        self.tokens += len(new)
        self.last = new[-1] if new else self.last
        self._tell(new, drafted)

    def end(self) -> None:
        """Nothing is left to do."""


class Generator:
    """A target that answers in any of the three ways."""

    def __init__(self, lines: Lines, model: Any, draft: Any | None) -> None:
        self._lines, self._model = lines, model
        self._ways: dict[str, dict[str, Any]] = {
            "transformers": {},
            "assisted": {"assistant_model": draft},
            "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
        }

    def answer(self, request: Request) -> None:
        """Generate, telling of every verification as it ends."""
        watch = Watch(
            lambda tokens, drafted: self._lines.tokens(request, tokens, drafted),
            len(request.token_ids),
        )
        ids = torch.tensor([request.token_ids], device=self._model.device)
        torch.manual_seed(request.seed)
        with _counting(self._model, watch):
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                streamer=watch,
                max_new_tokens=request.max_tokens,
                **_sampling(request),
                **self._ways[request.way],
            )
        self._lines.end(request, "stop" if watch.last in self._ends else "length")

    @property
    def _ends(self) -> list[int]:
        ends = self._model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends]


def _sampling(request: Request) -> dict[str, Any]:
    if request.temperature == 0:
        return {"do_sample": False}
    drawn = {"temperature": request.temperature, "top_p": request.top_p, "top_k": 0}
    return {"do_sample": True, **drawn}


@contextmanager
def _counting(model: Any, watch: Watch) -> Iterator[None]:
    def before(_: Any, __: Any, given: dict[str, Any]) -> None:
        watch.fed(given["input_ids"].shape[1])

    hook = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def main() -> int:
    """Serve until standard input ends."""
    lines = Lines()

    def load(settings: dict[str, Any]) -> tuple[str, Callable[[Request], None]]:
        pin(settings["threads"], settings["cpus"])
        name, device = settings["draft"], settings["device"]
        model = loaded(settings["model"], settings["dtype"], device)
        draft = None if name is None else loaded(name, settings["draft_dtype"], device)
        return _about(device), Generator(lines, model, draft).answer

    return serve_in_turn(lines, load)


def _about(device: str) -> str:
    import transformers

    return f"transformers {transformers.__version__}, torch {torch.__version__}, on {device}"


if __name__ == "__main__":
    sys.exit(main())
