"""GGUF files in parts, as llama.cpp's `gguf-split` makes them: NAME-00001-of-00003.gguf and so on.

The first part has the settings, each part some tensors, and each says which one it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.engine.checkpoint.gguf_file import GgufFile

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def parts_of(file: Path) -> tuple[Path, ...]:
    """All parts of which a file is one, the first one first; of a whole file itself.

    Raises ValueError, which names it, where one is missing.
    """
    found = _NAME.fullmatch(file.name)
    if found is None:
        return (file,)
    name, count = found[1], int(found[3])
    parts = (file.with_name(f"{name}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1))
    there: list[Path] = []
    for part in parts:
        if not part.is_file():
            if _is_whole(file):
                return (file,)
            raise ValueError(f"part {len(there) + 1} of {count}, {part.name}, is missing")
        there.append(part)
    return tuple(there) or (file,)


def _is_whole(file: Path) -> bool:
    """Whether it is no part, whatever its name says: parts that were made one keep it at times."""
    from services.engine.checkpoint.gguf_file import GgufFile

    return _counted(GgufFile(file, vocabulary=False), _COUNT, 1) == 1


def read_parts(file: Path, *, vocabulary: bool = True) -> GgufFile:
    """What is in a file, or in all its parts; ValueError for one that is broken or missing."""
    from services.engine.checkpoint.gguf_file import GgufFile

    whole = GgufFile(file, vocabulary=vocabulary)
    count = _counted(whole, _COUNT, 1)
    parts = parts_of(file) if count > 1 else (file,)
    if len(parts) != count:
        raise ValueError(f"it is in {count} parts, and its name does not say where the others are")
    for number, path in enumerate(parts):
        part = whole if path == file else GgufFile(path, vocabulary=False)
        if (_counted(part, _NUMBER, 0), _counted(part, _COUNT, 1)) != (number, count):
            raise ValueError(f"{path.name} is not part {number + 1} of {count}")
        if part is not whole:
            whole.tensors += part.tensors
    names = {tensor.name for tensor in whole.tensors}
    if len(names) < len(whole.tensors):
        raise ValueError("it has two tensors of one name")
    if (said := _counted(whole, _TENSORS, len(names))) != len(names):
        raise ValueError(f"its parts have {len(names)} tensors of {said}")
    return whole


def _counted(file: GgufFile, name: str, without: int) -> int:
    field = file.fields.get(name)
    value = without if field is None else field.value
    if not isinstance(value, int):
        raise ValueError(f"{name} is no whole number")
    return value
