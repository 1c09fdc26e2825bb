"""Form of a WebAssembly module, checked before it is compiled. Pure.

Fuel bounds what a module does when it runs, and nothing bounds how long a compiler thinks about it: a module of 157 kB
whose functions have 50,000 locals each took 154 s. So sizes and counts that a compiler's time grows with have limits of
their own, far above what programs need. Within them the slowest module that was found took 2 s.
"""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.plain_text import cleaned
from p2prl.protocol import limits

MAX_CODE_BYTES = 128 * 1024
"""All functions together: a game with its allocator takes 1 to 30 kB. Tables and word lists are data, not code."""

MAX_FUNCTION_BYTES = 16 * 1024
"""One function: the time to compile one grows with the square of its branches."""

MAX_FUNCTIONS = 1_024
MAX_LOCALS = 256
"""Locals of one function. Compilers of Rust and C rarely use fifty."""

MAX_EXPORTS = 64
"""The host looks through all of them."""

_MAGIC = b"\0asm\1\0\0\0"
_IMPORTS, _EXPORTS, _CODE = 2, 7, 10
_SHOWN = 3
"""Imports that a refusal names."""


def check_form(module: bytes) -> None:
    """Raise `RemoteProtocolError` for a module that imports anything, or is above a limit, and for bytes that are no
    module. What is left is for the validator of the library."""
    _at_most(len(module), limits.MAX_MODULE_BYTES, "bytes")
    if not module.startswith(_MAGIC):
        raise RemoteProtocolError("it does not begin like a WebAssembly module")
    file = _Reader(module, len(_MAGIC), len(module))
    while not file.at_end:
        kind = file.byte()
        section = file.part(file.number())
        if kind == _IMPORTS and (names := _imports(section)):
            raise RemoteProtocolError(f"it imports {', '.join(names)}, and an environment may import nothing")
        if kind == _EXPORTS:
            _at_most(section.number(), MAX_EXPORTS, "exports")
        if kind == _CODE:
            _check_code(section)


def _check_code(section: _Reader) -> None:
    _at_most(section.end - section.place, MAX_CODE_BYTES, "bytes of code")
    count = section.number()
    _at_most(count, MAX_FUNCTIONS, "functions")
    for _ in range(count):
        size = section.number()
        _at_most(size, MAX_FUNCTION_BYTES, "bytes in one function")
        body = section.part(size)
        locals_ = 0
        for _ in range(body.number()):
            locals_ += body.number()
            body.byte()
            _at_most(locals_, MAX_LOCALS, "locals in one function")


def _imports(section: _Reader) -> list[str]:
    """The first imports as `module.name`, and how many more there are."""
    count, names = section.number(), list[str]()
    if count:
        names.append(f"{section.name()}.{section.name()}")
    return [*names, f"{count - 1} more"] if count > 1 else names


def _at_most(found: int, most: int, what: str) -> None:
    if found > most:
        raise RemoteProtocolError(f"it has {found:,} {what}; at most {most:,}")


class _Reader:
    """Bytes of a part of the module. `RemoteProtocolError` where they end too early."""

    def __init__(self, data: bytes, place: int, end: int) -> None:
        self._data = data
        self.place = place
        self.end = end

    @property
    def at_end(self) -> bool:
        """Whether all is read."""
        return self.place >= self.end

    def byte(self) -> int:
        """The next byte."""
        if self.at_end:
            raise RemoteProtocolError("it is cut off")
        self.place += 1
        return self._data[self.place - 1]

    def number(self) -> int:
        """An unsigned number in LEB128, of 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise RemoteProtocolError("a number in it has more than five bytes")

    def part(self, size: int) -> _Reader:
        """The next `size` bytes, read on their own."""
        if size > self.end - self.place:
            raise RemoteProtocolError("it is cut off")
        self.place += size
        return _Reader(self._data, self.place - size, self.place)

    def name(self) -> str:
        """A name, as far as it can be shown."""
        part = self.part(self.number())
        return cleaned(self._data[part.place : part.end].decode("utf-8", "replace")[:40])
