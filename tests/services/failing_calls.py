"""A mode of torch in which one call of so many fails."""

import sys
from contextlib import nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
BROKEN = RuntimeError("a kernel failed")
SERVING = tuple(
    f"/services/{file}.py"
    for file in (
        *(f"verifier/{own}" for own in ("caches", "fed_text", "judging", "rows")),
        *(
            f"verifier/running/{own}"
            for own in ("core", "sessions", "choosing", "reading", "deciding", "outcome", "turns")
        ),
        *(f"engine/native/{own}" for own in ("kv", "pages", "prefix_cache", "layout")),
    )
)
KV_CALLS = ("rollback", "keep_path", "grow", "copy_prefix", "park", "claim", "check_append")


class Failing(TorchDispatchMode):
    """Counts calls of torch and of `watch`ed methods; number `at` of them raises `error`.

    `sites`: for each place in our code from which something is called, the numbers of its calls.
    """

    def __init__(self, at=None, error=BROKEN):
        super().__init__()
        self.at, self.error, self.calls, self.sites = at, error, 0, {}
        self.entered = False

    def __enter__(self):
        self.entered = True
        return super().__enter__()

    def __exit__(self, *raised):
        self.entered = False
        return super().__exit__(*raised)

    def hit(self, name):
        if not self.entered:
            return
        if self.at is None:
            self.sites.setdefault((name in KV_CALLS, *_site()), []).append(self.calls)
        self.calls += 1
        if self.calls - 1 == self.at:
            raise self.error

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.hit(str(func))
        return func(*args, **(kwargs or {}))

    def watch(self, monkeypatch, owner, name):
        """Calls of a method count, and what they call of torch does not."""
        real = getattr(owner, name)

        def watched(*args, **kwargs):
            self.hit(name)
            with _disable_current_modes() if name == "forward" else nullcontext():
                return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)


def _site():
    """The innermost lines in the stack that serve sessions or hold their K/V."""
    frame, lines = sys._getframe(2), []
    while frame is not None and len(lines) < 2:
        if frame.f_code.co_filename.endswith(SERVING):
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)
