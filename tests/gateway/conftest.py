"""The tiny models that real processes load."""

from tests.processes.conftest import models

__all__ = ["models"]
