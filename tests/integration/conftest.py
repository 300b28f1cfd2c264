"""What holds for every test of a whole cluster."""

import pytest

from services.grammar.vetting import Bounds


@pytest.fixture(autouse=True)
def formats_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats are compiled after everything else; a busy machine may take minutes over one."""
    *bounds, _ = Bounds.__init__.__defaults__
    monkeypatch.setattr(Bounds.__init__, "__defaults__", (*bounds, 250.0))
