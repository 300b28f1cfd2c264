"""What is in a GGUF file, found in a second: its settings, its vocabulary, where its tensors are.

The reader of the `gguf` package makes arrays of each number and each letter of a vocabulary, which
takes most of a minute for one of 262 144 tokens. This one has the same `fields` and `tensors`, so
that what reads files through that package can be given it (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?"},
    **{10: "<u8", 11: "<i8", 12: "<f8"},
}
_PLAIN = {0: "<f4", 1: "<f2", 24: "<i1", 25: "<i2", 26: "<i4", 27: "<i8", 28: "<f8"}
"""Kinds of tensors whose numbers numpy has."""
_MOST_DIMENSIONS = 8
_ALIGNMENT, _ARCHITECTURE = "general.alignment", "general.architecture"
_OF_VOCABULARY = "tokenizer."
_LONG = 4096
_MOST_BEFORE = 1 << 28
"""Bytes of a file before its tensors' numbers: a vocabulary of 262 144 tokens takes a tenth."""
_MOST_TENSORS, _MOST_VALUES = 1 << 17, 1 << 22
"""Of values of settings a vocabulary of 262 144 tokens takes a third."""


class Field:
    """A setting, as `gguf.ReaderField` has it: `parts[i]` for each `i` of `data` are its values."""

    def __init__(self, kinds: list[int], parts: Any, data: Sequence[int]) -> None:
        self.types, self.parts, self.data = kinds, parts, data

    @property
    def value(self) -> Any:
        """A text, a number or a truth, or a list of them."""
        of_texts = self.types[-1] == _STRING
        found = [
            bytes(self.parts[index]).decode() if of_texts else self.parts[index][0].item()
            for index in self.data
        ]
        return found if self.types[0] == _ARRAY else found[0]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor is in its file.

    `tensor_type`: how the file keeps its numbers. `size`: how many there are, the last axis
    being the one along which they follow each other. `rows` and `dtype`: the same as the file's
    bytes are read, blocks as they are.
    """

    file: Path
    name: str
    tensor_type: Any
    size: tuple[int, ...]
    offset: int
    rows: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def data(self) -> NDArray[Any]:
        """All of it, read now."""
        return self.part(0, self.rows[0] if self.rows else 1)

    def part(self, first: int, last: int) -> NDArray[Any]:
        """Some of the rows along the first axis, read now and not mapped."""
        shape = (last - first, *self.rows[1:])
        width = prod(self.rows[1:])
        offset = self.offset + first * width * self.dtype.itemsize
        read = np.fromfile(self.file, self.dtype, prod(shape), offset=offset)
        return read.reshape(shape if self.rows else ())

    def mapped(self) -> NDArray[Any]:
        """The same as the file has it: what is not looked at takes no memory."""
        return np.memmap(self.file, self.dtype, "r", self.offset, self.rows)


class GgufFile:
    """A file's `fields` and `tensors`; ValueError for one that is broken.

    `vocabulary`: with the tokens themselves, and all that is told of each one; else only how
    many there are.
    """

    def __init__(self, file: Path | str, *, vocabulary: bool = True) -> None:
        """Read all but the tensors' numbers."""
        self._path, self._vocabulary = Path(file), vocabulary
        whole: Any = np.memmap(self._path, np.uint8, "r")
        self._bytes = memoryview(whole)
        if self._take(4) != _MAGIC:
            raise ValueError("GGUF magic invalid")
        version, tensors, settings = self._numbers("<IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"GGUF version {version} is not one of {_VERSIONS}")
        if tensors > _MOST_TENSORS:
            raise ValueError(f"{tensors} tensors, more than {_MOST_TENSORS}")
        self.fields = dict(self._settings(settings))
        found = list(self._infos(tensors))
        self.tensors = [self._tensor(*one) for one in found]
        del self._bytes

    @property
    def architecture(self) -> str:
        """What kind of model it is, in the format's own words."""
        if (field := self.fields.get(_ARCHITECTURE)) is None:
            raise ValueError(f"{_ARCHITECTURE} is missing")
        return str(field.value)

    _at = _values = 0

    def _expect(self, values: int) -> None:
        """So many values of settings come; what reads them takes a while for each."""
        self._values += values
        if self._values > _MOST_VALUES:
            raise ValueError(f"{self._values} values of settings, more than {_MOST_VALUES}")

    def _take(self, count: int) -> memoryview:
        taken = self._bytes[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("the file is cut short")
        if self._at + count > _MOST_BEFORE:
            raise ValueError(f"settings and names take more than {_MOST_BEFORE} bytes")
        self._at += count
        return taken

    def _numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _string(self) -> bytes:
        [count] = self._numbers("<Q")
        return bytes(self._take(count))

    def _name(self) -> str:
        return self._string().decode()

    def _settings(self, count: int) -> Iterator[tuple[str, Field]]:
        self._expect(count)
        for _ in range(count):
            name = self._name()
            [kind] = self._numbers("<I")
            field = self._field(name, kind)
            if field is not None:
                yield name, field

    def _field(self, name: str, kind: int) -> Field | None:
        """A setting; None for one that nobody asked for."""
        if kind == _STRING:
            return Field([kind], [np.frombuffer(self._string(), np.uint8)], [0])
        if kind != _ARRAY:
            return Field([kind], [self._array(kind, 1)], [0])
        inner, count = self._numbers("<IQ")
        self._expect(count)
        left_out = not self._vocabulary and name.startswith(_OF_VOCABULARY) and count > _LONG
        if inner == _STRING:
            return self._strings(count, left_out=left_out)
        values = self._array(inner, count)
        if left_out:
            return None
        return Field([kind, inner], values.reshape(-1, 1), range(count))

    def _strings(self, count: int, *, left_out: bool) -> Field:
        if left_out:
            for _ in range(count):
                self._take(*self._numbers("<Q"))
            return Field([_ARRAY, _STRING], [b""], [0] * count)
        return Field([_ARRAY, _STRING], [self._string() for _ in range(count)], range(count))

    def _array(self, kind: int, count: int) -> NDArray[Any]:
        if kind not in _SCALARS:
            raise ValueError(f"a setting of kind {kind} is unknown")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _infos(self, count: int) -> Iterator[tuple[str, tuple[int, ...], int, int]]:
        for _ in range(count):
            name = self._name()
            [dimensions] = self._numbers("<I")
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"tensor {name} has {dimensions} dimensions")
            shape = self._numbers(f"<{dimensions}Q")[::-1]
            kind, offset = self._numbers("<IQ")
            yield name, shape, kind, offset

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        if kind not in {known.value for known in GGMLQuantizationType}:
            raise ValueError(f"tensor {name} is of kind {kind}, which is not known here")
        form = GGMLQuantizationType(kind)
        if 0 in shape:
            raise ValueError(f"tensor {name} has no numbers")
        start = -(-self._at // self._alignment) * self._alignment + offset
        block, size = GGML_QUANT_SIZES[form]
        if form.value in _PLAIN:
            dtype, rows = np.dtype(_PLAIN[form.value]), shape
        else:
            if not shape or shape[-1] % block:
                raise ValueError(f"tensor {name} is no whole number of blocks")
            dtype, rows = np.dtype(np.uint8), (*shape[:-1], shape[-1] // block * size)
        if start + prod(rows) * dtype.itemsize > len(self._bytes):
            raise ValueError(f"tensor {name} is cut short")
        return Tensor(self._path, name, form, shape, start, rows, dtype)

    @property
    def _alignment(self) -> int:
        field = self.fields.get(_ALIGNMENT)
        alignment = 32 if field is None else int(field.parts[0][0])
        if alignment < 1:
            raise ValueError(f"an alignment of {alignment}")
        return alignment
