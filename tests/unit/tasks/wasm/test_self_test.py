"""Self-test of an environment before a run brings it."""

from __future__ import annotations

import pytest

pytest.importorskip("wasmtime", reason="needs the extra agents")

from p2prl.errors import ConfigError
from p2prl.tasks.wasm.runtime import FUEL, from_text
from p2prl.tasks.wasm.self_test import plan_environment
from tests.unit.tasks.wasm.written_modules import EXAMPLES, HELLO, module

SPIN = "(loop $again (br $again)) (unreachable)"


@pytest.mark.parametrize("name", ["sticks", "calculator"])
def test_examples_pass_as_text_and_as_module(name: str) -> None:
    text = (EXAMPLES / f"{name}.wat").read_bytes()
    plan = plan_environment(name, 2.0, text)
    assert (plan.task, plan.weight, plan.module) == (name, 2.0, from_text(text))
    assert plan_environment(name, 2.0, plan.module).notice == plan.notice
    told, _, limit = plan.notice.partition(" of ")
    assert told.startswith(f"Environment {name}: {len(plan.module)} bytes; ")
    assert " episodes played twice alike, with " in told
    assert limit == f"{FUEL:,} fuel at most."
    assert 300 < int(told.rpartition(" ")[2].replace(",", "")) < 30_000


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"(module", "cannot be used: it cannot be read: "),
        (b"", "cannot be used: it cannot be read: expected at least one module field"),
        (b"(module)", "cannot be used: it exports no memory with the name 'memory'"),
        (b"\0asm", "cannot be used: it does not begin like a WebAssembly module"),
        (b'(module (import "env" "now" (func (result i64))))', "cannot be used: it imports env.now, and"),
        (module(reset="(unreachable)"), "fails for the seed 0: it trapped: unreachable"),
        (module(reset="(i64.const 0)"), "fails for the seed 0: its opening is empty"),
        (module(step=SPIN), f"fails for the seed 0, after the turn '': it ran out of fuel: an episode has {FUEL:,}"),
        (
            module(step=f"(if (i32.eqz (local.get $size)) (then (return (i64.const 0)))) (unreachable) {HELLO}"),
            "fails for the seed 0, after the turn '0': it trapped: unreachable",
        ),
        (module(reward="(f64.const 2)"), "fails for the seed 0: its reward was 2, outside 0..1"),
        (
            module(alloc="(if (i32.gt_u (local.get $size) (i32.const 999)) (then (unreachable))) (i32.const 64)"),
            "fails for the seed 0, after the turn 'xxxxxxxxxxxxxxxxxxxx': it trapped",
        ),
    ],
)
def test_refusals_name_what_was_seen(content: bytes, fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plan_environment("tried", 1.0, content)
    assert str(raised.value).startswith(f"the environment tried {fault}")
    assert raised.value.remedy
