"""Vector operations on blocks of 64 words for numba: classes of words, and masks of one bit a word.

LLVM has vectors of any width and lowers them to whatever the processor offers; numba's own loops do not become masks.
Arrays must be contiguous and aligned, and every block must lie within them: nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic
"""Code that generates LLVM's own for a call with arguments of these types."""

_WIDTH = 64
_BYTES = ir.VectorType(ir.IntType(8), _WIDTH)


def _block_pointer(context: Any, builder: Any, kind: Any, array: Any, start: Any, bits: int) -> Any:
    """Pointer to a vector of 64 numbers of `bits` bits that begins at index `start` of an array."""
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(ir.IntType(bits), _WIDTH)
    return builder.bitcast(cgutils.gep_inbounds(builder, data, start), vector.as_pointer())


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), _WIDTH), [0] * _WIDTH)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _mask(builder: Any, flags: Any) -> Any:
    return builder.bitcast(flags, ir.IntType(_WIDTH))


def _load_classes(context: Any, builder: Any, kind: Any, classes: Any) -> Any:
    zero = ir.Constant(ir.IntType(64), 0)
    return builder.load(_block_pointer(context, builder, kind, classes, zero, 8), align=1)


@_compiled
def different(_typing: Any, old: Any, new: Any, _start: Any) -> Any:
    """Mask of the words from `start` on that differ between two arrays."""
    bits = old.dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loads = []
        for kind, array in zip(signature.args[:2], arguments[:2], strict=True):
            pointer = _block_pointer(context, builder, kind, array, arguments[2], bits)
            loads.append(builder.load(pointer, align=bits // 8))
        return _mask(builder, builder.icmp_unsigned("!=", *loads))

    return types.uint64(old, new, types.int64), generate


@_compiled
def copy(_typing: Any, old: Any, new: Any, _start: Any) -> Any:
    """Copy the 64 words from `start` on from one array to the same place of another."""
    bits = old.dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            _block_pointer(context, builder, kind, array, arguments[2], bits)
            for kind, array in zip(signature.args[:2], arguments[:2], strict=True)
        )
        builder.store(builder.load(source, align=bits // 8), target, align=bits // 8)
        return context.get_dummy_value()

    return types.void(old, new, types.int64), generate


@_compiled
def classify(
    _typing: Any, old: Any, _start: Any, _shift: Any, _mask_bits: Any, _below: Any, _above: Any, out: Any
) -> Any:
    """Write the classes of the 64 words from `start` on to the bytes `out`; see `exponent_classes.class_window`."""
    bits = old.dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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
def members(_typing: Any, classes: Any, _number: Any) -> Any:
    """Mask of the 64 bytes that equal `number`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _load_classes(context, builder, signature.args[0], arguments[0])
        wanted = _splat(builder, builder.trunc(arguments[1], ir.IntType(8)), _BYTES)
        return _mask(builder, builder.icmp_unsigned("==", block, wanted))

    return types.uint64(classes, types.int64), generate


@_compiled
def advance(_typing: Any, classes: Any, _among: Any, seen: Any, following: Any, _first: Any) -> Any:
    """For each class `c` below 16 add the number of its bytes within a mask to `seen[first + c]`.

    Returns a mask of the classes whose `following` is below the sum. One block is loaded once for all of them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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
def set_bits(_typing: Any, _mask_type: Any) -> Any:
    """Number of set bits of a mask."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@_compiled
def lowest_bit(_typing: Any, _mask_type: Any) -> Any:
    """Place of the lowest set bit of a mask that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate
