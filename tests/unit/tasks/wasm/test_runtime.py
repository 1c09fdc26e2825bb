"""Hostile and faulty modules: each costs at most its fuel, and has one outcome."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import time

import pytest

pytest.importorskip("wasmtime", reason="needs the extra agents")

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.wasm import runtime
from p2prl.tasks.wasm.runtime import FUEL, MEMORY_BYTES, MESSAGE_BYTES, ModuleFaultError, Program
from tests.unit.house.source_tree import ROOT
from tests.unit.tasks.wasm.written_modules import END, HELLO, environment, example, module

SPIN = "(loop $again (br $again)) (unreachable)"
OUT = f"it ran out of fuel: an episode has {FUEL:,}"

CALLS_ITSELF = "(func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))"
GROWS = "(loop $again (drop (memory.grow (i32.const 1))) (br $again)) (unreachable)"
FILLS = "(loop $again (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $again)) (unreachable)"


def packed(address: int, size: int) -> str:
    return f"(i64.const {address << 32 | size:#x})"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (module(reset=SPIN), OUT),
        (module(reset=GROWS), OUT),
        (module(reset=FILLS), OUT),
        (module(more=f"(func $first {SPIN}) (start $first)"), OUT),
        (module(more=CALLS_ITSELF, reset="(drop (call $deep (i32.const 1)))" + HELLO), "it trapped: stack overflow"),
        (module(reset="(unreachable)"), "it trapped: unreachable"),
        (module(reset="(i64.div_s (i64.const 1) (i64.const 0))"), "it trapped: integer division by zero"),
        (module(reset="(i64.load (i32.const 65536))"), "it trapped: memory out of bounds"),
        (module(reset=packed(0, MESSAGE_BYTES + 1)), f"it gave a text of {MESSAGE_BYTES + 1:,} bytes; at most"),
        (module(reset=packed(65_530, 7)), "it gave a text of 7 bytes outside of its memory"),
        (module(reset="(i64.const -1)"), "it gave a text of 4,294,967,295 bytes; at most"),
        (module(reset=packed(0xFFFF_FFFF, 1)), "it gave a text of 1 bytes outside of its memory"),
        (module(reset="(i32.store8 (i32.const 0) (i32.const 0xff))" + HELLO), "it gave a text that is no UTF-8"),
        (module(reset=END), "its opening is empty"),
    ],
)
def test_a_module_that_cannot_begin_has_no_work(content: bytes, fault: str) -> None:
    began = time.process_time()
    with pytest.raises(ModuleFaultError) as raised:
        environment(content).opening(7)
    assert str(raised.value).startswith(f"the environment tried has no opening for the seed 7: {fault}")
    assert time.process_time() - began < 30.0, "fuel bounds it: seconds at most, where a growing memory is slowest"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (module(step=SPIN), OUT),
        (module(alloc=SPIN), OUT),
        (module(alloc="(i32.const 65534)"), "its alloc gave room for 4 bytes outside of its memory"),
        (module(alloc="(i32.const -1)"), "its alloc gave room for 4 bytes outside of its memory"),
        (module(step=packed(65_536, 1)), "it gave a text of 1 bytes outside of its memory"),
        (module(step=packed(1, 0xFFFF_FFFF)), "it gave a text of 4,294,967,295 bytes; at most"),
    ],
)
def test_a_fault_ends_the_episode_with_nothing(content: bytes, fault: str) -> None:
    tried = environment(content)
    assert tried.opening(3) == "hello"
    assert tried.reply(3, ["four"]) is None
    assert tried.score(3, ["four"], True) == FAILED
    with pytest.raises(ModuleFaultError, match=fault.split(":")[0]):
        tried.program.episode(3).step("four")


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf", "-0.01", "1.01"])
def test_a_reward_outside_the_range_counts_nothing(value: str) -> None:
    tried = environment(module(reward=f"(f64.const {value})"))
    assert tried.score(0, ["x"], True) == FAILED
    assert environment(module(reward=SPIN)).score(0, ["x"], True) == FAILED
    assert environment(module(reward="(f64.const 0.375)")).score(0, ["x"], True) == Score(0.375)


def test_memory_stops_at_its_limit() -> None:
    """The module answers how many pages it could add to its one, as three digits."""
    grow = """(local $n i32)
    (block $full (loop $more
      (br_if $full (i32.eq (memory.grow (i32.const 1)) (i32.const -1)))
      (local.set $n (i32.add (local.get $n) (i32.const 1))) (br $more)))
    (i32.store8 (i32.const 0) (i32.add (i32.const 48) (i32.div_u (local.get $n) (i32.const 100))))
    (i32.store8 (i32.const 1) (i32.add (i32.const 48)
      (i32.rem_u (i32.div_u (local.get $n) (i32.const 10)) (i32.const 10))))
    (i32.store8 (i32.const 2) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
    (i64.const 3)"""
    assert int(environment(module(reset=grow)).opening(0)) == MEMORY_BYTES // 65_536 - 1


def test_not_a_number_has_one_pattern() -> None:
    """However it came about; x86-64 gives 0/0 a sign, aarch64 gives it none."""
    for source in (
        "(f64.div (local.get $zero) (local.get $zero))",
        "(f64.sqrt (f64.sub (local.get $zero) (f64.const 1)))",
    ):
        store = f"(local $zero f64) (i64.store (i32.const 0) (i64.and (i64.reinterpret_f64 {source}) (i64.const -1)))"
        digits = "".join(
            f"(i32.store8 (i32.const {100 + n}) (i32.add (i32.const 97) (i32.and (i32.const 15)"
            f" (i32.wrap_i64 (i64.shr_u (i64.load (i32.const 0)) (i64.const {60 - 4 * n}))))))"
            for n in range(16)
        )
        told = environment(module(reset=store + digits + packed(100, 16))).opening(0)
        canonical = struct.pack(">d", math.nan).hex()
        assert told == "".join(chr(97 + int(digit, 16)) for digit in canonical)


COUNTER = """(global.set $count (i32.add (global.get $count) (i32.const 1)))
(i32.store8 (i32.const 0) (i32.add (i32.const 48) (global.get $count))) (i64.const 1)"""


def test_what_a_module_remembers_ends_with_its_episode() -> None:
    tried = environment(module(more="(global $count (mut i32) (i32.const 0))", step=COUNTER))
    for _ in range(2):
        assert [tried.reply(1, ["x"] * turns) for turns in (1, 2, 3)] == ["1", "2", "3"]
        assert [tried.reply(seed, ["x"]) for seed in (1, 2, 1)] == ["1"] * 3
    assert tried.reply(1, ["x"] * 3) == "3", "asked for at once"
    assert tried.reply(1, ["x"] * 3) == "3", "asked for again"


def test_ten_thousand_turns_end_when_the_fuel_does() -> None:
    work = "(local $n i32) (loop $more (local.set $n (i32.add (local.get $n) (i32.const 1)))"
    tried = environment(module(step=f"{work} (br_if $more (i32.lt_u (local.get $n) (i32.const 1000)))) {HELLO}"))
    assert tried.reply(0, ["x"] * 64) == "hello"
    assert tried.reply(0, ["x"] * 10_000) is None
    assert tried.score(0, ["x"] * 10_000, False) == FAILED


def test_fuel_is_spent_as_it_was_when_this_was_written() -> None:
    """Another figure is another runtime: peers that have it end long episodes elsewhere."""
    episode = example("calculator").program.episode(5)
    assert episode.opening == "42*64+63?"
    spent = [episode.fuel_used]
    for turn in ("42*64", "2688+63", "#2751"):
        episode.step(turn)
        spent.append(episode.fuel_used)
    assert episode.reward(True) == 1.0
    assert spent == [320, 698, 1144, 1345]
    depth = """(global $n (mut i32) (i32.const 0)) (func $deep (param i64 i64) (result i64)
      (global.set $n (i32.add (global.get $n) (i32.const 1)))
      (i64.add (local.get 0) (call $deep (local.get 1) (i64.add (local.get 0) (i64.const 1)))))"""
    fallen = Program(module(more=depth, step="(call $deep (i64.const 1) (i64.const 2))")).episode(0)
    with pytest.raises(ModuleFaultError, match="stack overflow"):
        fallen.step("x")
    assert fallen.fuel_used == 60_035


def test_a_turn_arrives_as_it_was_written() -> None:
    """The module repeats the turn."""
    say = "(i64.or (i64.shl (i64.extend_i32_u (local.get $turn)) (i64.const 32)) (i64.extend_i32_u (local.get $size)))"
    tried = environment(module(step=f"(if (i32.eqz (local.get $size)) (then (return {HELLO}))) {say}"))
    assert tried.reply(0, [""]) == "hello"
    for turn in ("a", "é😀\0\n", "x" * 60_000):
        assert tried.reply(0, [turn]) == turn
    assert tried.reply(0, ["\ud800"]) == "?", "a lone surrogate has no bytes"
    assert tried.reply(0, ["x" * 70_000]) is None, "the page is full"


def test_the_last_turn_of_an_unfinished_episode_is_not_shown() -> None:
    seen = "(global.set $seen (i32.add (global.get $seen) (i32.const 1)))" + HELLO
    half = "(f64.div (f64.convert_i32_u (global.get $seen)) (f64.const 8))"
    tried = environment(module(more="(global $seen (mut i32) (i32.const 0))", step=seen, reward=half))
    assert tried.score(0, ["x", "y", "cut o"], False) == Score(0.25)
    assert tried.score(0, ["cut o"], False) == Score(0.0)
    assert tried.score(0, ["x", "y"], True) == FAILED, "the module did not end it"


def refusal(content: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as raised:
        Program(content)
    return str(raised.value)


def test_exports_are_checked() -> None:
    good = module()
    assert Program(good).episode(0).opening == "hello"
    assert refusal(good.replace(b"\x04step", b"\x04stop")) == "it exports no function step(i32, i32) -> i64"
    assert refusal(good.replace(b"\x06memory", b"\x06memorx")) == "it exports no memory with the name 'memory'"
    wrong = runtime.from_text(
        b'(module (memory (export "memory") 1) (func (export "alloc") (param i64) (result i32) (i32.const 0)))'
    )
    assert refusal(wrong) == "its function alloc is (i64) -> i32, and must be (i32) -> i32"
    too_much = module(memory='(memory (export "memory") 129)')
    assert refusal(too_much) == f"its memory begins with {129 * 65_536:,} bytes; at most {MEMORY_BYTES:,}"
    shared = b'(module (memory (export "memory") 1 1 shared))'
    assert refusal(runtime.from_text(shared)).startswith("it is no valid module: ")


@pytest.mark.parametrize(
    "body",
    [
        "(drop (v128.const i64x2 1 2))",
        "(drop (i8x16.relaxed_swizzle (v128.const i64x2 1 2) (v128.const i64x2 1 2)))",
        "(drop (memory.atomic.notify (i32.const 0) (i32.const 0)))",
        "(drop (ref.i31 (i32.const 1)))",
    ],
)
def test_what_machines_could_differ_in_is_off(body: str) -> None:
    assert refusal(module(reset=body + HELLO)).startswith("it is no valid module: ")


def test_a_fault_of_the_text_names_its_place() -> None:
    with pytest.raises(RemoteProtocolError, match=r"it cannot be read: .*<anon>:2:"):
        runtime.from_text(b"(module\n (fun))")


def test_a_program_that_ends_with_an_environment_open_says_nothing() -> None:
    script = (
        "from tests.unit.tasks.wasm.written_modules import example\n"
        "held = example('sticks')\n"
        "print(held.opening(3), held.reply(3, ['1']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("9: -1=7:\n", "")


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    runtime.library.cache_clear()
    try:
        with pytest.raises(ConfigError, match="need the package 'wasmtime'") as raised:
            runtime.library()
        assert "agents" in raised.value.remedy
        monkeypatch.undo()
        monkeypatch.setattr(runtime, "version", lambda _: "51.0.0")
        with pytest.raises(ConfigError, match=r"wasmtime 51\.0\.0 is installed, and .* version 50"):
            runtime.library()
    finally:
        monkeypatch.undo()
        runtime.library.cache_clear()
