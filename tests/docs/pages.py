"""The fenced blocks of a page, and what their info strings say of how they are run.

    python        typed in, block after block, in one interpreter for the page, which may await
    sh            run to its end, which has status 0
    sh serves     starts servers; what follows on the page is run while they serve
    sh node       like sh, where Node.js is
    … needs X     not run: X is a key of NEEDS
    json, yaml    parsed
    text, promql  output, a drawing or an expression: not run

Anything else is a mistake, a fence that says nothing included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.glob("*.md")), *sorted((ROOT / "examples").rglob("README.md")))
EVERY_PAGE = (
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *PAGES,
    ROOT / "k8s" / "README.md",
    *sorted((ROOT / "bench").rglob("*.md")),
    *sorted((ROOT / "models").rglob("*.md")),
    *sorted((ROOT / "services").rglob("*.md")),
)
"""Those whose examples are not run included."""

NEEDS = {
    "kubernetes": "a cluster of Kubernetes",
    "hours": "a real model and hours",
    "minutes": "minutes",
    "protoc": "a generator of another language",
    "grpcurl": "grpcurl",
    "devices": "several devices",
    "docker": "Docker, and a GPU",
    "a-bench": "the result of a bench",
    "the-suite": "nothing, but runs tests, which run with all others anyway",
    "vllm": "an environment of its own; tests/vllm has what it does",
    "its-own-test": "what a test of its own gives it",
}
"""Why a block is not run."""

RUN = ("python", "sh", "sh serves", "sh node")
PARSED = ("json", "yaml")
SHOWN = ("text", "promql")

_CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences; `line` is that of the first one."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def place(self) -> str:
        """Where to look when it fails."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs(self) -> str | None:
        """What it needs that no test has; None = nothing, so it is run."""
        _, found, need = self.info.partition(" needs ")
        return need if found else None

    @property
    def known(self) -> bool:
        """Whether its info string is one of those above."""
        if self.needs is not None:
            return self.needs in NEEDS and self.info.split()[0] in ("python", "sh")
        return self.info in (*RUN, *PARSED, *SHOWN)


def prose(text: str) -> str:
    """A page without its fenced blocks; every other line where it was."""
    return _CODE.sub(lambda block: "\n" * block[0].count("\n"), text)


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in their order; ValueError for one that does not end."""
    return blocks_in(page.read_text("utf-8").splitlines(), page)


def blocks_in(lines: Sequence[str], page: Path) -> list[Block]:
    """The blocks of these lines of a page."""
    found: list[Block] = []
    opened: tuple[int, str, int] | None = None
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            opened = number, fence["info"].strip(), len(fence["indent"])
        elif not fence["info"].strip():
            begun, info, indent = opened
            inner = (each[indent:] for each in lines[begun : number - 1])
            found.append(Block(page, begun, info, "\n".join(inner) + "\n"))
            opened = None
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: a block that does not end")
    return found
