"""A drafter cut from its target: some of its layers, its embeddings, a head over frequent tokens.

shape      cutting one, and its form without weights
quantize   matrices in 8 or 4 bits
storage    the folder of a drafter
"""

from services.engine.native.student.shape import Student, cut, shell
from services.engine.native.student.storage import (
    DraftHeader,
    Storage,
    is_draft,
    load_student,
    read_draft_json,
    save_student,
)

__all__ = [
    "DraftHeader",
    "Storage",
    "Student",
    "cut",
    "is_draft",
    "load_student",
    "read_draft_json",
    "save_student",
    "shell",
]
