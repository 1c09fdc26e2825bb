"""Sizes and counts of a module are checked before a compiler sees it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("wasmtime", reason="needs the extra agents")

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.tasks.wasm.module_form import (
    MAX_CODE_BYTES,
    MAX_EXPORTS,
    MAX_FUNCTION_BYTES,
    MAX_FUNCTIONS,
    MAX_LOCALS,
    check_form,
)
from p2prl.tasks.wasm.runtime import Program, from_text
from tests.unit.tasks.wasm.written_modules import module

GOOD = module()


def leb(number: int) -> bytes:
    """Unsigned LEB128, written from its definition."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + leb(rest) if rest else bytes([low])


def section(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + leb(len(body)) + body


def of_code(*bodies: bytes, groups: bytes = b"\0") -> bytes:
    """A module of functions without arguments; `groups` are their locals."""
    code = b"".join(leb(len(groups + body) + 1) + groups + body + b"\x0b" for body in bodies)
    types, count = section(1, b"\x01\x60\0\0"), leb(len(bodies))
    return b"\0asm\1\0\0\0" + types + section(3, count + bytes(len(bodies))) + section(10, count + code)


def refusal(content: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as raised:
        check_form(content)
    return str(raised.value)


def test_imports_are_named() -> None:
    one = from_text(b'(module (import "env" "abort" (func)))')
    assert refusal(one) == "it imports env.abort, and an environment may import nothing"
    three = from_text(
        b'(module (import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))'
        b' (import "env" "memory" (memory 1)) (import "a" "b" (global i32)))'
    )
    assert refusal(three).startswith("it imports wasi_snapshot_preview1.random_get, 2 more, and")
    hidden = one.replace(b"abort", b"\x1b[2J\n")
    assert "\x1b" not in refusal(hidden)


def test_limits() -> None:
    check_form(of_code(*[b"\x01" * (MAX_FUNCTION_BYTES - 2)] * 7))
    most = f"; at most {MAX_FUNCTION_BYTES:,}"
    assert refusal(of_code(b"\x01" * (MAX_FUNCTION_BYTES - 1))) == f"it has 16,385 bytes in one function{most}"
    assert refusal(of_code(*[b"\x01" * 10_000] * 14)).endswith(f"bytes of code; at most {MAX_CODE_BYTES:,}")
    check_form(of_code(*[b""] * MAX_FUNCTIONS))
    assert refusal(of_code(*[b""] * (MAX_FUNCTIONS + 1))) == "it has 1,025 functions; at most 1,024"
    check_form(of_code(b"", groups=b"\x02" + leb(MAX_LOCALS - 1) + b"\x7f\x01\x7e"))
    two_groups = b"\x02" + leb(MAX_LOCALS) + b"\x7f\x01\x7e"
    assert refusal(of_code(b"", groups=two_groups)) == "it has 257 locals in one function; at most 256"
    assert refusal(of_code(b"", groups=b"\x01" + leb((1 << 32) - 1) + b"\x7f")).startswith(
        "it has 4,294,967,295 locals"
    )
    names = b"".join(leb(len(name)) + name + b"\x03\0" for name in (b"%d" % n for n in range(MAX_EXPORTS + 1)))
    exports = section(7, leb(MAX_EXPORTS + 1) + names)
    assert refusal(b"\0asm\1\0\0\0" + exports) == "it has 65 exports; at most 64"
    padding = section(0, b"\x01n" + bytes(limits.MAX_MODULE_BYTES))
    assert refusal(GOOD + padding) == f"it has {len(GOOD + padding):,} bytes; at most 1,048,576"


def test_bytes_that_are_no_module() -> None:
    for content in (b"", b"\0asm", b"(module)", b"\x7fELF" + bytes(100)):
        assert refusal(content) == "it does not begin like a WebAssembly module"
    assert refusal(GOOD[:40]) == "it is cut off"
    assert refusal(b"\0asm\1\0\0\0\x0a\xff\xff\xff\xff\xff\x0f") == "a number in it has more than five bytes"


def test_the_slowest_of_the_modules_within_the_limits_compiles() -> None:
    """Loops in loops, whose values a compiler follows through all of them; 154 s without the limits of this file."""
    loops = b"\x03\x40" * (MAX_FUNCTION_BYTES // 3 - 4) + b"\x0b" * (MAX_FUNCTION_BYTES // 3 - 4)
    content = of_code(loops, groups=b"\x01" + leb(MAX_LOCALS) + b"\x7e")
    began = time.process_time()
    with pytest.raises(RemoteProtocolError, match="exports no memory"):
        Program(content)
    assert time.process_time() - began < 20.0


@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.integers(0, len(GOOD)))
def test_any_bytes_are_a_module_or_are_refused(junk: bytes, start: int, end: int) -> None:
    for content in (junk, b"\0asm\1\0\0\0" + junk, GOOD[:start] + junk + GOOD[end:]):
        try:
            program = Program(content)
        except RemoteProtocolError as error:
            assert str(error)  # noqa: PT017
        else:
            try:
                program.episode(1).step("x")
            except RemoteProtocolError as fault:
                assert str(fault)  # noqa: PT017
