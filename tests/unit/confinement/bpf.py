"""An interpreter of classic BPF, written from the kernel's description of it."""

from __future__ import annotations

import struct

ALLOW, KILL, NOTIFY = "allow", "kill", "notify"
WIDE = 1 << 40


def verdict(program: bytes, number: int, arguments: tuple[int, ...], audit: int) -> object:
    """`allow`, `kill`, `notify` or the errno that a system call gets."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, audit, 0, *(value % 2**64 for value in padded))
    instructions = list(struct.iter_unpack("<HBBI", program))
    accumulator = at = 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif code == 0x15:
            at += if_true if accumulator == operand else if_false
        elif code == 0x25:
            at += if_true if accumulator > operand else if_false
        elif code == 0x45:
            at += if_true if accumulator & operand else if_false
        else:
            assert code == 0x06
            action = operand & 0xFFFF0000
            return {0x7FFF0000: ALLOW, 0x7FC00000: NOTIFY, 0x80000000: KILL}.get(action, operand & 0xFFFF)
