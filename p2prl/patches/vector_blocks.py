"""Vector operations on blocks of 64 words for numba: classes of words, and masks of one bit a word.

LLVM has vectors of any width and lowers them to whatever the processor offers; numba's own loops do not become masks.
Arrays must be contiguous and aligned, and every block must lie within them: nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import intrinsic

_compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic
"""Code that generates LLVM's own for a call with arguments of these types."""

_Typed = tuple[Signature, Callable[[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]]
"""Types of a call and what generates its code."""

_WIDTH = 64
_BYTES = ir.VectorType(ir.IntType(8), _WIDTH)


def _block_pointer(
    context: BaseContext, builder: ir.IRBuilder, kind: types.Array, array: ir.Value, start: ir.Value, bits: int
) -> ir.Value:
    """Pointer to a vector of 64 numbers of `bits` bits that begins at index `start` of an array."""
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(ir.IntType(bits), _WIDTH)
    return builder.bitcast(cgutils.gep_inbounds(builder, data, start), vector.as_pointer())


def _splat(builder: ir.IRBuilder, value: ir.Value, vector: ir.VectorType) -> ir.Value:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), _WIDTH), [0] * _WIDTH)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _mask(builder: ir.IRBuilder, flags: ir.Value) -> ir.Value:
    return builder.bitcast(flags, ir.IntType(_WIDTH))


def _load_classes(context: BaseContext, builder: ir.IRBuilder, kind: types.Array, classes: ir.Value) -> ir.Value:
    zero = ir.Constant(ir.IntType(64), 0)
    return builder.load(_block_pointer(context, builder, kind, classes, zero, 8), align=1)


@_compiled
def different(_typing: Context, old: types.Array, new: types.Array, _start: types.Integer) -> _Typed:
    """Mask of the words from `start` on that differ between two arrays."""
    bits = old.dtype.bitwidth

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        loads = []
        for kind, array in zip(signature.args[:2], arguments[:2], strict=True):
            pointer = _block_pointer(context, builder, kind, array, arguments[2], bits)
            loads.append(builder.load(pointer, align=bits // 8))
        return _mask(builder, builder.icmp_unsigned("!=", *loads))

    return types.uint64(old, new, types.int64), generate


@_compiled
def copy(_typing: Context, old: types.Array, new: types.Array, _start: types.Integer) -> _Typed:
    """Copy the 64 words from `start` on from one array to the same place of another."""
    bits = old.dtype.bitwidth

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        source, target = (
            _block_pointer(context, builder, kind, array, arguments[2], bits)
            for kind, array in zip(signature.args[:2], arguments[:2], strict=True)
        )
        builder.store(builder.load(source, align=bits // 8), target, align=bits // 8)
        return context.get_dummy_value()

    return types.void(old, new, types.int64), generate


@_compiled
def classify(
    _typing: Context,
    old: types.Array,
    _start: types.Integer,
    _shift: types.Integer,
    _mask_bits: types.Integer,
    _below: types.Integer,
    _above: types.Integer,
    out: types.Array,
) -> _Typed:
    """Write the classes of the 64 words from `start` on to the bytes `out`; see `exponent_classes.class_window`."""
    bits = old.dtype.bitwidth

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        array, start_at, *scalars, classes = arguments
        words = ir.VectorType(ir.IntType(bits), _WIDTH)
        pointer = _block_pointer(context, builder, signature.args[0], array, start_at, bits)
        block = builder.load(pointer, align=bits // 8)
        moved = builder.lshr(block, _splat(builder, builder.trunc(scalars[0], ir.IntType(bits)), words))
        mask, lowest, lift = (_splat(builder, builder.trunc(s, ir.IntType(8)), _BYTES) for s in scalars[1:])
        field = builder.and_(builder.trunc(moved, _BYTES), mask)
        over = builder.icmp_unsigned(">", field, lowest)
        height = builder.select(over, builder.sub(field, lowest), ir.Constant(_BYTES, [0] * _WIDTH))
        most = builder.sub(ir.Constant(_BYTES, [15] * _WIDTH), lift)
        height = builder.select(builder.icmp_unsigned("<", height, most), height, most)
        target = _block_pointer(context, builder, signature.args[6], classes, ir.Constant(ir.IntType(64), 0), 8)
        builder.store(builder.add(height, lift), target, align=1)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(old, whole, whole, whole, whole, whole, out), generate


@_compiled
def members(_typing: Context, classes: types.Array, _number: types.Integer) -> _Typed:
    """Mask of the 64 bytes that equal `number`."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        block = _load_classes(context, builder, signature.args[0], arguments[0])
        wanted = _splat(builder, builder.trunc(arguments[1], ir.IntType(8)), _BYTES)
        return _mask(builder, builder.icmp_unsigned("==", block, wanted))

    return types.uint64(classes, types.int64), generate


@_compiled
def advance(
    _typing: Context,
    classes: types.Array,
    _among: types.Integer,
    seen: types.Array,
    following: types.Array,
    _first: types.Integer,
) -> _Typed:
    """For each class `c` below 16 add the number of its bytes within a mask to `seen[first + c]`.

    Returns a mask of the classes whose `following` is below the sum. One block is loaded once for all of them.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        block = _load_classes(context, builder, signature.args[0], arguments[0])
        counters, limits = (
            context.make_array(kind)(context, builder, array).data
            for kind, array in zip(signature.args[2:4], arguments[2:4], strict=True)
        )
        due = ir.Constant(ir.IntType(64), 0)
        for number in range(16):
            own = _mask(builder, builder.icmp_unsigned("==", block, ir.Constant(_BYTES, [number] * _WIDTH)))
            at = builder.add(arguments[4], ir.Constant(ir.IntType(64), number))
            counter = cgutils.gep_inbounds(builder, counters, at)
            total = builder.add(builder.load(counter), builder.ctpop(builder.and_(own, arguments[1])))
            builder.store(total, counter)
            left = builder.sub(builder.load(cgutils.gep_inbounds(builder, limits, at)), total)
            sign = builder.ashr(left, ir.Constant(ir.IntType(64), 63))
            due = builder.or_(due, builder.and_(sign, ir.Constant(ir.IntType(64), 1 << number)))
        return due

    return types.uint64(classes, types.uint64, seen, following, types.int64), generate


@_compiled
def set_bits(_typing: Context, _mask_type: types.Integer) -> _Typed:
    """Number of set bits of a mask."""

    def generate(
        _context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@_compiled
def lowest_bit(_typing: Context, _mask_type: types.Integer) -> _Typed:
    """Place of the lowest set bit of a mask that is not 0."""

    def generate(
        _context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate
