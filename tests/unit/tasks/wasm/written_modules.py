"""Modules for tests, from the parts that a test is about."""

from __future__ import annotations

from p2prl.tasks.wasm.runtime import Program, from_text
from p2prl.tasks.wasm.wasm_environment import WasmEnvironment
from tests.unit.house.source_tree import ROOT

EXAMPLES = ROOT / "examples" / "wasm"

HELLO = "(i64.const 5)"
"""The text at address 0, of five bytes."""

END = "(i64.const 0)"


def module(
    *,
    reset: str = HELLO,
    step: str = END,
    alloc: str = "(i32.const 1024)",
    reward: str = "(f64.const 1)",
    memory: str = '(memory (export "memory") 1)',
    more: str = "",
) -> bytes:
    """A module whose text at address 0 is `hello`; each part is the body of a function."""
    return from_text(
        f"""(module {memory} (data (i32.const 0) "hello") {more}
        (func (export "alloc") (param $size i32) (result i32) {alloc})
        (func (export "reset") (param $seed i64) (result i64) {reset})
        (func (export "step") (param $turn i32) (param $size i32) (result i64) {step})
        (func (export "reward") (param $finished i32) (result f64) {reward}))""".encode()
    )


def environment(content: bytes, name: str = "tried") -> WasmEnvironment:
    return WasmEnvironment(name, Program(content))


def example(name: str) -> WasmEnvironment:
    """An environment of examples/wasm."""
    return environment(from_text((EXAMPLES / f"{name}.wat").read_bytes()), name)
