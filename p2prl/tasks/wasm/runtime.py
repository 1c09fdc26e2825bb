"""Runtime of WebAssembly modules: the adapter of wasmtime, and the calls that host and module make (docs/tasks.md).

Two machines must agree on every result, also on that of a module which overflows its stack: how deep a call may go
depends on a compiler's frames. So modules are compiled for Pulley, wasmtime's own portable machine, and interpreted:
frames, fuel and traps are the same on x86-64 and aarch64, and no module becomes machine code. Nothing is given to a
module: no WASI, no clock, no randomness, no threads. Not-a-number has one bit pattern.
"""

from __future__ import annotations

import atexit
import importlib
from functools import cache
from importlib.metadata import version
from typing import Any
from weakref import WeakSet

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.installation import install_command
from p2prl.plain_text import cleaned
from p2prl.tasks.wasm.module_form import check_form

FUEL = 10_000_000
"""Instructions of an episode, all turns together: 40 ms, or 5 s where each is as slow as a module can make it."""

MEMORY_BYTES = 8 * 1024 * 1024
"""Memory of an instance. Rust's default stack takes 1 MiB of it."""

STACK_BYTES = 256 * 1024
"""Stack of Pulley, which is not that of the process."""

TABLE_ELEMENTS = 1_024
"""Function pointers of a module: filling a table costs fuel only by element."""

MESSAGE_BYTES = 65_536
"""A message or an opening, UTF-8: as many characters as an environment's message may have, of four bytes each."""

MAJOR = "50"
"""The wasmtime that runs agree on: fuel and frames are those of its compiler."""

EXTRA = "agents"

_FUNCTIONS = {
    "alloc": "(i32) -> i32",
    "reset": "(i64) -> i64",
    "step": "(i32, i32) -> i64",
    "reward": "(i32) -> f64",
}
_MEMORY = "memory"
_PAGE = 65_536
_LOW = 0xFFFF_FFFF


class ModuleFaultError(RemoteProtocolError):
    """A module did what ends its episode with a reward of 0; the text says what, as in `it ran out of fuel`."""


@cache
def library() -> Any:
    """wasmtime. `ConfigError` when it is not installed, or is of another major version than runs agree on."""
    try:
        module = importlib.import_module("wasmtime")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"environments that a run brings need the package 'wasmtime': {str(error)[:200]}",
            remedy=install_command(EXTRA),
        ) from error
    found = version("wasmtime")
    if found.partition(".")[0] != MAJOR:
        raise ConfigError(
            f"wasmtime {found} is installed, and environments that a run brings are computed with version {MAJOR}",
            remedy=install_command(EXTRA),
        )
    return module


_HANDLES: WeakSet[Any] = WeakSet()


def _kept_till_exit(handle: Any) -> Any:
    """The handle. The library frees what nobody holds; what is held when the program ends, it would free after its own
    modules, with a traceback."""
    _HANDLES.add(handle)
    return handle


@atexit.register
def _free_handles() -> None:
    for handle in list(_HANDLES):
        handle.close()


@cache
def _engine() -> Any:
    """One engine for the whole process. Every setting that changes a result, or takes a thread, is named."""
    wasmtime = library()
    config = wasmtime.Config()
    config.target = "pulley64"
    config.consume_fuel = True
    config.cranelift_nan_canonicalization = True
    config.cranelift_opt_level = "none"  # a module is compiled at every start, and its fuel is spent in milliseconds
    config.parallel_compilation = False
    config.max_wasm_stack = STACK_BYTES
    config.signals_based_traps = False
    config.memory_reservation = config.memory_guard_size = config.memory_reservation_for_growth = 0
    config.gc_support = False
    for proposal in (
        "component_model",
        "custom_page_sizes",
        "exceptions",
        "function_references",
        "gc",
        "memory64",
        "multi_memory",
        "relaxed_simd",
        "simd",
        "stack_switching",
        "tail_call",
        "threads",
        "wide_arithmetic",
    ):
        setattr(config, f"wasm_{proposal}", False)
    return _kept_till_exit(wasmtime.Engine(config))


def from_text(text: bytes) -> bytes:
    """The module of a text (WAT). `RemoteProtocolError` naming the fault and its line."""
    wasmtime = library()
    try:
        return bytes(wasmtime.wat2wasm(text))
    except wasmtime.WasmtimeError as error:
        raise RemoteProtocolError(f"it cannot be read: {_shown(error, 400)}") from error


class Program:
    """A compiled module with the exports of an environment."""

    def __init__(self, module: bytes) -> None:
        """Check and compile. `RemoteProtocolError` for a module that is none, imports, is too large or lacks an export;
        `ConfigError` as `library`."""
        check_form(module)
        wasmtime = library()
        try:
            self._module = _kept_till_exit(wasmtime.Module(_engine(), module))
        except wasmtime.WasmtimeError as error:
            raise RemoteProtocolError(f"it is no valid module: {_shown(error, 200)}") from error
        exports = {export.name: export.type for export in self._module.exports}
        memory = exports.get(_MEMORY)
        if not isinstance(memory, wasmtime.MemoryType):
            raise RemoteProtocolError(f"it exports no memory with the name {_MEMORY!r}")
        if memory.limits.min * _PAGE > MEMORY_BYTES:
            raise RemoteProtocolError(
                f"its memory begins with {memory.limits.min * _PAGE:,} bytes; at most {MEMORY_BYTES:,}"
            )
        for name, wanted in _FUNCTIONS.items():
            found = exports.get(name)
            if not isinstance(found, wasmtime.FuncType):
                raise RemoteProtocolError(f"it exports no function {name}{wanted}")
            if (has := _signature(found)) != wanted:
                raise RemoteProtocolError(f"its function {name} is {has}, and must be {wanted}")

    def episode(self, seed: int) -> ModuleEpisode:
        """A new episode of a 63-bit seed. `ModuleFaultError` when the module cannot begin it."""
        return ModuleEpisode(self._module, seed)


class ModuleEpisode:
    """One episode in an instance of its own: reset at once, then a step for each turn, then the reward.

    All of it spends one budget of fuel, so what it says follows from the module, the seed and the turns alone. After a
    fault it must not be asked again.
    """

    def __init__(self, module: Any, seed: int) -> None:
        self._wasmtime = wasmtime = library()
        self._store = _kept_till_exit(wasmtime.Store(_engine()))
        self._store.set_limits(
            memory_size=MEMORY_BYTES, table_elements=TABLE_ELEMENTS, instances=1, tables=1, memories=1
        )
        self._store.set_fuel(FUEL)
        try:
            self._exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise self._fault(error) from error
        self._memory = self._exports[_MEMORY]
        self.ended = False
        """Whether the module has ended the episode."""
        self.opening = self._text(self._call("reset", seed))
        if not self.opening:
            raise ModuleFaultError("its opening is empty")

    @property
    def fuel_used(self) -> int:
        """Fuel that the episode has spent so far."""
        return FUEL - int(self._store.get_fuel())

    def step(self, turn: str) -> str | None:
        """The message after the model's next turn; None when the module ends the episode. Raises `ModuleFaultError`."""
        if self.ended:
            raise ModuleFaultError("it was asked for a message after the end of the episode")
        data = turn.encode("utf-8", "replace")
        place = self._call("alloc", len(data)) & _LOW
        if place + len(data) > self._memory.data_len(self._store):
            raise ModuleFaultError(f"its alloc gave room for {len(data):,} bytes outside of its memory")
        if data:
            self._memory.write(self._store, data, place)
        answer = self._call("step", _as_i32(place), len(data))
        self.ended = answer == 0
        return None if self.ended else self._text(answer)

    def reward(self, finished: bool) -> float:
        """What the episode is worth, within 0..1. Raises `ModuleFaultError`."""
        value = float(self._call("reward", int(finished)))
        if not 0.0 <= value <= 1.0:
            raise ModuleFaultError(f"its reward was {value:g}, outside 0..1")
        return value

    def _call(self, name: str, *arguments: int) -> Any:
        try:
            return self._exports[name](self._store, *arguments)
        except (self._wasmtime.Trap, self._wasmtime.WasmtimeError) as error:
            raise self._fault(error) from error

    def _text(self, answer: int) -> str:
        """The text at a place that the module names: its address in the high half, its bytes in the low one."""
        place, size = answer >> 32 & _LOW, answer & _LOW
        if size > MESSAGE_BYTES:
            raise ModuleFaultError(f"it gave a text of {size:,} bytes; at most {MESSAGE_BYTES:,}")
        if place + size > self._memory.data_len(self._store):
            raise ModuleFaultError(f"it gave a text of {size:,} bytes outside of its memory")
        try:
            return bytes(self._memory.read(self._store, place, place + size)).decode()
        except UnicodeDecodeError as error:
            raise ModuleFaultError("it gave a text that is no UTF-8") from error

    def _fault(self, error: Exception) -> ModuleFaultError:
        code = getattr(error, "trap_code", None)
        if code is self._wasmtime.TrapCode.OUT_OF_FUEL:
            return ModuleFaultError(f"it ran out of fuel: an episode has {FUEL:,}")
        if code is not None:
            return ModuleFaultError(f"it trapped: {code.name.lower().replace('_', ' ')}")
        return ModuleFaultError(f"it failed: {_shown(error, 200)}")


def _signature(kind: Any) -> str:
    params, results = (", ".join(map(str, types)) for types in (kind.params, kind.results))
    return f"({params}) -> {results or 'nothing'}"


def _as_i32(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


def _shown(error: Exception, most: int) -> str:
    """A library's message, which may quote the module."""
    return " ".join(cleaned(str(error)).split())[:most]
