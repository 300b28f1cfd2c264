"""Weights in the order in which a CPU multiplies a few rows with them fastest.

Decoding multiplies one row with every weight, and checking a draft a few: all of it waits for
the weights to come from memory. `nn.Linear` has them in plain order. oneDNN and MKL then sort
or copy them in every product, or multiply row by row, and four rows cost half as much again as
one. Packed once, one row takes about half the time, and each row more a few per cent.

Modules that take the same rows (queries, keys and values; gate and up of an MLP) are packed as one,
whose product is made once: a call less is 10 µs saved, and a core more is at work on what is small.
Its columns are the same to the bit.

`services.engine.number_formats` decides which of these a model gets:

* oneDNN's blocked order, for float32 and bfloat16: each value stays as it is.
* The same for bfloat16, and for a few rows ATen's products of codes of 4 bits, where a file has its
  weights as such (`checkpoint.codes`): they are a third of the bytes.
* FBGEMM's packed fp16 weights, with float32 activations. bfloat16 values are exact in float16
  except below 6e-5 in size, where they move by at most 3e-8.
* FBGEMM's int8 weights. A model that drafts gets rows of one byte: what it says is judged, so that
  its own law may move. A target gets rows of two bytes, so that nothing but its weights is rounded.

Where rows are float32, what is no linear module, or too large for fp16, stays in float32, and the
log names it.

Of FBGEMM's fp16 products, each row of three and more is the same to the bit whatever rows run
beside it. FBGEMM cuts a product into tiles of a few rows; without AVX-512 its kernel for a tile of
one or two rows adds up in another order. So a product that would end in such a tile gets rows of
zeros behind its own (7 rows become 8, 31 become 33): which numbers of rows these are is measured
where it runs. One or two rows alone stay as they are: three would cost a step of plain decoding a
fifth more. They may differ in the last bits from the same rows in a larger product.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.contract.errors import StartError
from services.engine import number_formats
from services.engine.checkpoint import codes as stored_codes
from services.engine.checkpoint.codes import GROUP, Codes
from services.engine.checkpoint.stored import codes_of, cut, read_all, weight_of, with_codes
from services.engine.number_formats import NumberFormat, Products, name_of, number_format

logger = logging.getLogger(__name__)

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of modules that take the same rows, as nearly all architectures have them."""
_FBGEMM = "fbgemm"
_SMALLEST = 1e-12
_LARGEST = 65504.0
LEAST_BYTES = 8 << 20
"""Fewer weights stay in a core's caches, where a plain product is as fast."""
MOST_NUMBERS, MOST_WIDENED = 1 << 27, 1 << 25
"""A module with more weights is packed in parts; the second, where they are float32 on the way.
Each part is a call more, and one more wait for all cores."""
_ROWS = 64
"""Parts have a multiple of so many rows, but for the last one."""
FEW = 2
"""Rows that FBGEMM multiplies as they are, alone: padding them is what would cost time."""
SHARED = 64
"""From so many rows on, FBGEMM's products of fp16, which run in one thread, are shared out."""
_PROBE = 64
_MOST_PADDING = 8
_BATCH = 8
"""Rows that oneDNN is told to expect; the order it chooses is the same from 4 to 16."""
# `quantized.linear_dynamic_fp16` runs the same kernel and is not deprecated, but
# costs 40 µs more a call: a tenth of a decoding step of a small model.
_PACK = getattr(torch, "fbgemm_pack_gemm_matrix_fp16", None)
_MULTIPLY = getattr(torch, "fbgemm_linear_fp16_weight_fp32_activation", None)
# What TorchInductor compiles frozen linear layers to.
_BLOCK = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_MULTIPLY_BLOCKED = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_MULTIPLY_AND_ADD = getattr(_MULTIPLY_BLOCKED, "binary", None)
_PACK_CODES = getattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu", None)
# Through `torch.ops` a call takes 1 to 2 µs more.
_MULTIPLY_CODES = getattr(torch, "_weight_int4pack_mm_for_cpu", None)
# Rows by a scale and a zero that are given: `quantized.linear_dynamic` takes them from all rows.
_MULTIPLY_BYTES: Any = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default


class PackedLinear(nn.Module):
    """`nn.Linear` with weights in an order of the kernel's own; nothing can change them."""

    widens = False
    """Whether weights, and all between the products, are float32 first, whatever the dtype."""
    tolerances: ClassVar = {torch.float32: 1e-3, torch.bfloat16: 1e-2}
    """How far products may be from the plain ones, by what is packed."""

    def __init__(self, linear: nn.Linear) -> None:
        """Pack the weights of `linear`; StartError when the products do not agree."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, bias = self._values(linear)
        if not weight.isfinite().all():
            raise StartError("weights are not all finite numbers")
        self._bias = bias
        self._packed = self._pack(weight)
        self._check(weight)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        raise NotImplementedError

    def plus(self, rows: Tensor, added: Tensor) -> Tensor:
        """The product of rows [..., in_features] and `added` [..., out_features], together."""
        return self.forward(rows) + added

    def whole(self) -> Tensor:
        """The weights [out_features, in_features] in plain order."""
        raise NotImplementedError

    @property
    def code_bytes(self) -> float:
        """Of codes that are kept beside the weights."""
        return 0

    @classmethod
    def _values(cls, linear: nn.Linear) -> tuple[Tensor, Tensor | None]:
        """Weights and bias as they are packed."""
        weight = weight_of(linear)
        bias = None if linear.bias is None else linear.bias.detach()
        if cls.widens:
            return weight.float(), None if bias is None else bias.float()
        return weight, bias

    def _pack(self, weight: Tensor) -> Any:
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedLinear:
        """One with the same packed weights, which nothing changes and nothing can copy."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(self.__dict__)
        return twin

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: ARG002
        """The weights as they are packed: a digest of a model is one of these, too."""
        destination[prefix + "weight"] = self.whole()
        if self._bias is not None:
            destination[prefix + "bias"] = self._bias

    def _check(self, weight: Tensor) -> None:
        row = self._row(weight.dtype)
        expected = F.linear(row, weight, self._bias)
        _require_near(self(row), expected, self.tolerances[weight.dtype])

    def _row(self, dtype: torch.dtype) -> Tensor:
        """One [1, in_features] to compare products of."""
        return torch.linspace(-1.0, 1.0, self.in_features, dtype=dtype)[None]


def _require_near(ours: Tensor, expected: Tensor, tolerance: float) -> None:
    expected = expected.float()
    error = (ours.float() - expected).norm() / expected.norm().clamp_min(1e-9)
    if not error <= tolerance:
        raise StartError(f"packed weights: products differ by {error:.1e}")


class BlockedLinear(PackedLinear):
    """oneDNN's: rows and weights of one dtype, float32 or bfloat16."""

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features], of the weights' dtype."""
        product: Tensor = _MULTIPLY_BLOCKED(rows, self._packed, self._bias, "none", [], "")  # type: ignore[misc]
        return product

    def plus(self, rows: Tensor, added: Tensor) -> Tensor:
        """See `PackedLinear`; one kernel for both, where PyTorch has it."""
        if _MULTIPLY_AND_ADD is None:
            return super().plus(rows, added)
        total: Tensor = _MULTIPLY_AND_ADD(rows, added, self._packed, self._bias, "add")
        return total

    def whole(self) -> Tensor:
        """The weights [out_features, in_features] in plain order."""
        return self._packed.to_dense()  # type: ignore[no-any-return]

    def _pack(self, weight: Tensor) -> Any:
        return _BLOCK(weight.contiguous(), _BATCH)  # type: ignore[misc]


class CodedLinear(BlockedLinear):
    """oneDNN's in bfloat16, and ATen's of 4-bit codes for a few rows, where the weights have some.

    Codes are the file's; what scales and offsets they have is rounded to bfloat16, as weights are.
    Codes of 8 bits are two of 4, whose products are added up: those of a last layer alone, as all
    of a model would take more than half of its memory again.
    """

    most_rows: ClassVar = (4, 3)
    """That one product of 4 bits is made of, and two: of more, oneDNN's is as fast."""
    _few = 0

    def __init__(self, linear: nn.Linear) -> None:
        """See `PackedLinear`."""
        super().__init__(linear)
        self._codes = _packed_codes(linear)
        if self._codes:
            self._few = self.most_rows[len(self._codes) - 1]
            row = self._row(torch.bfloat16)
            _require_near(self(row), super().forward(row), _CODED_TOLERANCE)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features], bfloat16."""
        if not self._are_few(rows):
            return super().forward(rows)
        flat, total = rows if rows.dim() == 2 else rows.flatten(0, -2), self._bias
        for weights, meanings in self._codes:
            product = _MULTIPLY_CODES(flat, weights, GROUP, meanings)  # type: ignore[misc]
            total = product if total is None else product.add_(total)
        assert total is not None
        return total if flat is rows else total.view(*rows.shape[:-1], self.out_features)

    def plus(self, rows: Tensor, added: Tensor) -> Tensor:
        """See `PackedLinear`."""
        if not self._are_few(rows):
            return super().plus(rows, added)
        return self.forward(rows).add_(added)

    @property
    def code_bytes(self) -> float:
        """See `PackedLinear`."""
        return sum(part.nbytes for pair in self._codes for part in pair)

    def _are_few(self, rows: Tensor) -> bool:
        return 0 < rows.numel() // self.in_features <= self._few


_CODED_TOLERANCE = 3e-2
"""From oneDNN's product, of a row whose neighbours are alike, as the check's are: there what
offsets are off by adds up. Of other rows products are off by as much as oneDNN's."""
_FOUR = 4
_LANES = 16
"""ATen packs codes of so many columns of a product together."""
_TALL = 8
"""Times its width a last layer has columns at least, and no other."""
_AT_ONCE = 1 << 21
"""Codes that are packed at once: on the way each takes some bytes."""


def _packed_codes(linear: nn.Linear) -> list[tuple[Tensor, Tensor]]:
    """Of each product of 4 bits: numbers as ATen wants them, and what 8 and one more of them mean.

    None where there are no codes.
    """
    width, height = linear.in_features, linear.out_features
    step = max(1, _AT_ONCE // width // _ROWS) * _ROWS
    made: list[tuple[Tensor, Tensor]] = []
    for start in range(0, height if height % _LANES == 0 else 0, step):
        codes = codes_of(linear, start, start + step)
        if codes is None or (codes.bits != _FOUR and height <= _TALL * width):
            return []
        if not made:
            # Beforehand, so that no holes are left between what stays.
            made = [_room_for_codes(linear) for _ in range(codes.bits // _FOUR)]
        for half, (numbers, meanings) in zip(_halves(codes), made, strict=True):
            numbers[start : start + step], meanings[:, start : start + step] = _packed_half(*half)
    return made


def _room_for_codes(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    numbers = torch.empty(linear.out_features, linear.in_features // 2, dtype=torch.uint8)
    shape = linear.in_features // GROUP, linear.out_features, 2
    return numbers, torch.empty(shape, dtype=torch.bfloat16)


def _halves(codes: Codes) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Numbers of 4 bits, scales and offsets, whose products together are those of the codes."""
    if codes.bits == _FOUR:
        yield codes.numbers, codes.scales, codes.offsets
    else:
        # Each has its numbers' middle, 8, at 0, so that nothing large is rounded.
        middle = -8 * codes.scales
        yield codes.numbers >> 4, 16 * codes.scales, 16 * middle
        yield codes.numbers & 15, codes.scales, codes.offsets - 16 * middle


def _packed_half(numbers: Tensor, scales: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    meanings = torch.stack((scales, offsets + 8 * scales), -1).transpose(0, 1)
    packed: Tensor = _PACK_CODES(numbers.int(), 2)  # type: ignore[misc]
    return packed, meanings.bfloat16().contiguous()


class TooLarge(Exception):
    """Weights that float16 does not have."""


class HalfLinear(PackedLinear):
    """FBGEMM's: fp16 weights; float32 in, float32 out."""

    widens = True

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        count = rows.numel() // self.in_features
        if count <= FEW:
            return self._product(rows)
        return shared_out(self._with_zeros, rows)

    def whole(self) -> Tensor:
        """The weights [out_features, in_features] in plain order, float32."""
        every = torch.eye(self.in_features)
        return _MULTIPLY(every, self._packed, None).T  # type: ignore[misc,no-any-return]

    def _pack(self, weight: Tensor) -> Any:
        if float(weight.abs().max()) > _LARGEST:
            raise TooLarge
        return _PACK(weight)  # type: ignore[misc]

    def _with_zeros(self, rows: Tensor) -> Tensor:
        """The product of rows [..., in_features], with zeros behind where it wants them."""
        count = rows.numel() // self.in_features
        lacking = padding(count)
        if not lacking:
            return self._product(rows)
        padded = F.pad(rows.reshape(count, self.in_features), (0, 0, 0, lacking))
        return self._product(padded)[:count].view(*rows.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        product: Tensor = _MULTIPLY(rows, self._packed, self._bias)  # type: ignore[misc]
        return product


def shared_out(multiply: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """What `multiply` makes of rows [..., d], a part of them in each of torch's threads."""
    threads, count = torch.get_num_threads(), rows.numel() // rows.shape[-1]
    if threads == 1 or count < SHARED:
        return multiply(rows)
    parts = torch.split(rows.reshape(count, -1), -(-count // threads))
    product = torch.cat(list(_workers(threads).map(multiply, parts)))
    return product.view(*rows.shape[:-1], -1)


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "rows")


class ByteLinear(PackedLinear):
    """FBGEMM's int8 weights with a scale for each column; float32 in, float32 out.

    Rows are rounded to 8 bits as well, each by its own largest value: in a text some tokens have
    values a hundred times as large as all others. (LLM.int8, Dettmers et al., 2208.07339,
    section 2.) A CPU without VNNI adds pairs of products up in 16 bits, so there rows get 7.
    Sums are of integers, whose order is nothing to them: a row's bits depend on that row alone.
    """

    widens = True
    tolerances: ClassVar = {torch.float32: 5e-2}
    """With the weights as they were rounded."""

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        flat = rows.reshape(-1, self.in_features)
        if not len(flat):
            return rows.new_empty(*rows.shape[:-1], self.out_features)
        unit = (flat.abs().amax(-1, keepdim=True) / self._most).clamp_min_(_SMALLEST)
        product = self._product(flat / unit).mul_(unit)
        if self._bias is not None:
            product += self._bias
        return product.view(*rows.shape[:-1], self.out_features)

    def whole(self) -> Tensor:
        """The weights [out_features, in_features] in plain order, as they were rounded."""
        return torch.ops.quantized.linear_unpack(self._packed)[0].dequantize()  # type: ignore[no-any-return]

    def _pack(self, weight: Tensor) -> Any:
        scales = (weight.abs().amax(1) / 127.0).clamp_min(_SMALLEST)
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._most = 127 if number_formats.cpu().vnni else 63
        return torch.ops.quantized.linear_prepack(rounded, None)

    def _check(self, weight: Tensor) -> None:  # noqa: ARG002
        super()._check(self.whole())

    def _product(self, rows: Tensor) -> Tensor:
        """Of rows [n, in_features] of at most `_most` in size, rounded to whole numbers."""
        product: Tensor = _MULTIPLY_BYTES(rows, 1.0, self._most + 1, self._packed)
        return product


class WideByteLinear(ByteLinear):
    """int8 weights by rows of two bytes: those of a target (W8A16).

    A row's second byte is what the first one leaves, and is multiplied beside it, as a row of its
    own: of few rows the time goes into reading weights. So rows have 15 bits, and without VNNI 13.
    """

    tolerances: ClassVar = {torch.float32: 1e-3}

    def _product(self, rows: Tensor) -> Tensor:
        """See `ByteLinear`; of numbers that need not be whole."""
        first, finer = rows.round(), 2 * self._most
        both = super()._product(torch.cat((first, (rows - first).mul_(finer))))
        return torch.add(both[: len(rows)], both[len(rows) :], alpha=1 / finer)


_KINDS: dict[Products, type[PackedLinear]] = {
    Products.BLOCKED: BlockedLinear,
    Products.CODED: CodedLinear,
    Products.HALF: HalfLinear,
    Products.BYTES: ByteLinear,
}


class Product:
    """One product for several modules that are given the very same rows, one after the other."""

    def __init__(self, packed: PackedLinear, users: int) -> None:
        self.packed, self._users = packed, users
        self._rows: Tensor | None = None
        self._product: Tensor | None = None
        self._left = 0

    def of(self, rows: Tensor) -> Tensor:
        """[..., out_features of all]; kept until each module has had it, or other rows come."""
        product = self._product
        if product is None or rows is not self._rows:
            product = self.packed(rows)
            self._rows, self._product, self._left = rows, product, self._users
        self._left -= 1
        if not self._left:
            self._rows = self._product = None
        return product

    def __deepcopy__(self, memo: dict[int, Any]) -> Product:
        """One with the same weights that is given rows of its own."""
        twin = Product(self.packed, self._users)
        memo[id(self)] = twin
        return twin


class PartLinear(PackedLinear):
    """Some columns of a product that is made once for several modules."""

    def __init__(self, linear: nn.Linear, product: Product, start: int) -> None:
        """In place of `linear`, whose columns begin at `start`."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._product, self._columns = product, slice(start, start + linear.out_features)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]: a view of the whole product."""
        return self._product.of(rows)[..., self._columns]

    def whole(self) -> Tensor:
        """The weights [out_features, in_features] in plain order."""
        return self._product.packed.whole()[self._columns]

    @property
    def code_bytes(self) -> float:
        """See `PackedLinear`: this module's part."""
        packed = self._product.packed
        return packed.code_bytes * self.out_features / packed.out_features

    @property
    def _bias(self) -> Tensor | None:  # type: ignore[override]
        bias = self._product.packed._bias
        return None if bias is None else bias[self._columns]

    def __deepcopy__(self, memo: dict[int, Any]) -> PartLinear:
        """One of the twin of its product."""
        twin = super().__deepcopy__(memo)
        assert isinstance(twin, PartLinear)
        twin._product = copy.deepcopy(self._product, memo)
        return twin


class SplitLinear(PackedLinear):
    """A product in several parts of columns.

    While a part is packed, little beside it is in memory as float32. The last layer alone can have
    most of a model's weights.
    """

    def __init__(self, parts: Sequence[PackedLinear]) -> None:
        """In this order."""
        nn.Module.__init__(self)
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        self._parts = tuple(parts)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return torch.cat([part(rows) for part in self._parts], -1)

    def whole(self) -> Tensor:
        """The weights [out_features, in_features] in plain order."""
        return torch.cat([part.whole() for part in self._parts])

    @property
    def code_bytes(self) -> float:
        """See `PackedLinear`."""
        return sum(part.code_bytes for part in self._parts)

    @property
    def _bias(self) -> Tensor | None:  # type: ignore[override]
        parts = [part._bias for part in self._parts]
        return None if parts[0] is None else torch.cat(parts)  # type: ignore[arg-type]


@lru_cache(maxsize=1 << 13)
def padding(count: int) -> int:
    """Rows to put behind `count` rows, so that all have the bits they have in tiles of many."""
    padded = range(_MOST_PADDING)
    return next((more for more in padded if _one_kernel(count + more)), 0)


def _one_kernel(count: int) -> bool:
    """Whether a product of `count` equal rows has equal rows: those of a product of six."""
    row, packed = _probe()
    expected = _MULTIPLY(row.expand(6, -1), packed, None)[0]  # type: ignore[misc]
    return bool((_MULTIPLY(row.expand(count, -1), packed, None) == expected).all())  # type: ignore[misc]


@cache
def _probe() -> tuple[Tensor, Any]:
    """A row [1, 64] and packed weights [64, 64] that show in which order products are added up."""
    drawn = torch.Generator().manual_seed(0)
    row, weight = (torch.randn(size, _PROBE, generator=drawn) for size in (1, _PROBE))
    return row, _PACK(weight)  # type: ignore[misc]


def whole_product(modules: Sequence[nn.Module]) -> PackedLinear | None:
    """The product whose columns are those of these modules, in this order; None: there is none."""
    parts = [module for module in modules if isinstance(module, PartLinear)]
    if not parts or len(parts) < len(modules):
        return None
    packed = parts[0]._product.packed
    ends = list(accumulate(part.out_features for part in parts))
    in_order = [part._columns.stop for part in parts] == ends
    alike = all(part._product.packed is packed for part in parts)
    return packed if in_order and alike else None


def packing_of(model: Any, form: NumberFormat | None = None) -> type[PackedLinear] | None:
    """How this model's weights are to be packed, if at all; `form` None: the one of its dtype."""
    form = form or number_format(name_of(model.dtype), str(model.device))
    products = form.products
    if products in (Products.BLOCKED, Products.CODED) and _size(model) < LEAST_BYTES:
        return None
    return _KINDS.get(products)


def _size(model: Any) -> int:
    """Bytes of all weights that would be packed."""
    return sum(child.weight.nbytes for _, _, child in _linears(model))


_Place = tuple[nn.Module, str, nn.Linear]
"""A plain linear module, behind the module above it and its name there."""


def _linears(model: Any) -> Iterator[_Place]:
    """Every plain linear module."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                yield module, name, child


def pack(model: Any, kind: type[PackedLinear]) -> None:
    """Replace every linear module; compute in float32 from the embedding on if `kind` does."""
    together = sorted(_together(model), key=_weight, reverse=True)
    if issubclass(kind, ByteLinear):
        # Whose packing it is to be: of all that rounds, nothing else runs here.
        torch.backends.quantized.engine = _FBGEMM

    def replace(places: list[_Place]) -> None:
        linears = [linear for _, _, linear in places]
        try:
            packed = _packed(kind, linears)
        except TooLarge:
            for linear in linears:
                read_all(linear)
            return
        for (module, name, _), replacement in zip(places, packed, strict=True):
            setattr(module, name, replacement)
        places.clear()

    # The largest first, while there is nothing beside it; what is packed is nowhere else then.
    alone = [places for places in together if 4 * _weight(places) > sum(map(_weight, together))]
    with warnings.catch_warnings(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")
        for places in alone:
            replace(places)
        list(pool.map(replace, together[len(alone) :]))
    if not kind.widens:
        return
    if left := list(left_plain(model)):
        logger.warning("%d modules keep weights in float32, the first is %s", len(left), left[0])
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(_to_float)
        else:
            _upcast(module)


def left_plain(model: Any) -> Iterator[str]:
    """Where there are matrices that are neither packed nor an embedding."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        if any(own.dim() > 1 for own in module.parameters(recurse=False)):
            yield path


def _together(model: Any) -> Iterator[list[_Place]]:
    """Every linear module, siblings in one list."""
    found: dict[tuple[int, str], list[_Place]] = {}
    for place in _linears(model):
        module, name, _ = place
        names = next((names for names in SIBLINGS if name in names), (name,))
        found.setdefault((id(module), names[0]), []).append(place)
    for places in found.values():
        alike = {_likeness(linear) for _, _, linear in places}
        yield from [places] if len(alike) == 1 else [[place] for place in places]


def _weight(places: list[_Place]) -> int:
    return sum(linear.weight.nbytes for _, _, linear in places)


def _likeness(linear: nn.Linear) -> tuple[Any, ...]:
    """What modules have in common whose weights can be packed as one."""
    return linear.in_features, linear.weight.dtype, linear.bias is None


def _packed(kind: type[PackedLinear], linears: list[nn.Linear]) -> list[PackedLinear]:
    """These modules packed, as one where they are several."""
    if len(linears) == 1:
        return [_alone(kind, linears[0])]
    width = sum(linear.out_features for linear in linears)
    whole = nn.Linear(linears[0].in_features, width, bias=False, device="meta")
    whole.weight = _joined([weight_of(linear) for linear in linears])
    if linears[0].bias is not None:
        whole.bias = _joined([linear.bias for linear in linears])
    product = Product(_of_memory(kind, whole, linears), len(linears))
    starts = accumulate((linear.out_features for linear in linears), initial=0)
    pairs = zip(linears, starts, strict=False)
    return [PartLinear(linear, product, start) for linear, start in pairs]


def _alone(kind: type[PackedLinear], linear: nn.Linear) -> PackedLinear:
    """A module packed, in parts where it is large."""
    parts = -(-linear.weight.numel() // (MOST_WIDENED if kind.widens else MOST_NUMBERS))
    if parts <= 1:
        return kind(linear)
    step = -(-linear.out_features // parts // _ROWS) * _ROWS
    cuts = [(start, start + step) for start in range(0, linear.out_features, step)]
    return SplitLinear([_of_memory(kind, cut(linear, *own), [linear], *own) for own in cuts])


def _of_memory(
    kind: type[PackedLinear],
    read: nn.Linear,
    sources: Sequence[nn.Linear],
    first: int = 0,
    last: int | None = None,
) -> PackedLinear:
    """A module packed that was read of others, all of them or some of their rows."""
    if issubclass(kind, CodedLinear):
        with_codes(read, stored_codes.joined([codes_of(own, first, last) for own in sources]))
    return kind(read)


def _joined(parts: list[Tensor]) -> nn.Parameter:
    """Parameters of several modules, one below the other."""
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)


def _upcast(module: nn.Module) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(parameter.float(), requires_grad=False))


def _to_float(module: nn.Module, args: Any, output: Tensor) -> Tensor:  # noqa: ARG001
    return output.float()
