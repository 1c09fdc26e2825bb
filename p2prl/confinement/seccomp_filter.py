"""Seccomp filters as classic BPF: conditions on the arguments of system calls, and the instructions that check them."""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_JUMP_BITS = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_ALLOW = 0x7FFF0000
_NOTIFY = 0x7FC00000
_ERRNO = 0x00050000
_KILL_PROCESS = 0x80000000
_MISSING = _ERRNO | errno.ENOSYS

_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16  # of struct seccomp_data

UNKNOWN = ("clone3",)
"""Answered with ENOSYS: the C library then uses `clone`, whose flags a filter can read."""


@dataclass(frozen=True, kw_only=True)
class ArgumentRule:
    """Condition on one argument of a system call; values are below 2^32."""

    argument: int
    one_of: tuple[int, ...] = ()
    """Allowed values; empty allows all."""
    none_of: tuple[int, ...] = ()
    """Refused values."""
    required_bits: int = 0
    """One of these bits has to be set."""
    forbidden_bits: int = 0
    then: ArgumentRule | None = None
    """Condition that calls within this one have to meet besides."""
    otherwise: ArgumentRule | None = None
    """Condition that lets values pass which are not `one_of`."""


def numbers(table: str) -> dict[str, int]:
    """System calls and their numbers, of a text that lists them in turn."""
    entries = table.split()
    return {name: int(number) for name, number in zip(entries[::2], entries[1::2], strict=True)}


def allow_filter(
    audit: int, allowed: Mapping[str, int], rules: Mapping[str, ArgumentRule], *, refused: Collection[str] = ()
) -> bytes:
    """Instructions that refuse every call but those `allowed`, which have to meet their rules. Of these `refused` fail
    with EACCES, as files do that nobody may open."""
    program = _start(audit)
    for name, number in allowed.items():
        if name in UNKNOWN:
            body = [_instruction(_RETURN, _MISSING)]
        elif name in refused:
            body = [_instruction(_RETURN, _ERRNO | errno.EACCES)]
        elif name in rules:
            body = _checked(rules[name])
        else:
            body = [_instruction(_RETURN, _ALLOW)]
        program += [_instruction(_JUMP_EQUAL, number, if_false=len(body)), *body]
    program.append(_instruction(_RETURN, _ERRNO | errno.EPERM))
    return b"".join(program)


def deny_filter(
    audit: int,
    denied: Mapping[str, int],
    rules: Mapping[str, ArgumentRule],
    *,
    last: int,
    notified: Mapping[str, int] | None = None,
) -> bytes:
    """Instructions that allow every call but those `denied`, which may pass by their rules, and those above `last`.

    `notified` calls wait for the answer of the process that holds the filter's listener. For processes whose libraries
    call more than a list can name. Unknown calls get ENOSYS, as from an older kernel.
    """
    program = [*_start(audit), _instruction(_JUMP_GREATER, last, if_false=1), _instruction(_RETURN, _MISSING)]
    for name, number in denied.items():
        if name in UNKNOWN:
            body = [_instruction(_RETURN, _MISSING)]
        elif name in rules:
            body = _checked(rules[name])
        else:
            body = [_instruction(_RETURN, _ERRNO | errno.EPERM)]
        program += [_instruction(_JUMP_EQUAL, number, if_false=len(body)), *body]
    for number in (notified or {}).values():
        program += [_instruction(_JUMP_EQUAL, number, if_false=1), _instruction(_RETURN, _NOTIFY)]
    return b"".join([*program, _instruction(_RETURN, _ALLOW)])


def _start(audit: int) -> list[bytes]:
    """Instructions that check the architecture and load the call's number."""
    return [
        *_load(_ARCHITECTURE_OFFSET),
        _instruction(_JUMP_EQUAL, audit, if_true=1),
        _instruction(_RETURN, _KILL_PROCESS),
        *_load(_NUMBER_OFFSET),
    ]


def _checked(rule: ArgumentRule) -> list[bytes]:
    """Instructions that end in a verdict on one argument."""
    deny = _instruction(_RETURN, _ERRNO | errno.EPERM)
    met = [_instruction(_RETURN, _ALLOW)] if rule.then is None else _checked(rule.then)
    low = _ARGUMENTS_OFFSET + 8 * rule.argument  # both architectures are little-endian
    body: list[bytes] = []
    if rule.one_of:
        body += [*_load(low + 4), _instruction(_JUMP_EQUAL, 0, if_true=1), deny]
    body += _load(low)
    if rule.required_bits:
        body += [_instruction(_JUMP_BITS, rule.required_bits, if_true=1), deny]
    if rule.forbidden_bits:
        body += [_instruction(_JUMP_BITS, rule.forbidden_bits, if_false=1), deny]
    for value in rule.none_of:
        body += [_instruction(_JUMP_EQUAL, value, if_false=1), deny]
    for value in rule.one_of:
        body += [_instruction(_JUMP_EQUAL, value, if_false=len(met)), *met]
    if not rule.one_of:
        return [*body, *met]
    return [*body, *([deny] if rule.otherwise is None else _checked(rule.otherwise))]


def _load(offset: int) -> list[bytes]:
    return [_instruction(_LOAD, offset)]


def _instruction(code: int, operand: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, operand)
