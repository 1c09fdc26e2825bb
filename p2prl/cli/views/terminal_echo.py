"""The terminal's own `^C`: written where the cursor stands, it would wrap a full line and shift a live panel by one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def without_control_echo(descriptor: int = 0) -> Iterator[None]:
    """Keep the terminal at `descriptor` from showing control characters inside this block. No-op where it is none.

    What a process that is killed leaves behind is a shell that does not show `^C` either.
    """
    before = _set_echo(descriptor, shown=False)
    try:
        yield
    finally:
        if before:
            _set_echo(descriptor, shown=True)


def _set_echo(descriptor: int, *, shown: bool) -> bool:
    """Set it; whether it was shown. A process in the background may not: the system would stop it."""
    if sys.platform == "win32":
        return False
    import termios

    with suppress(OSError, termios.error):
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return False
        settings = termios.tcgetattr(descriptor)
        before = bool(settings[3] & termios.ECHOCTL)
        settings[3] = settings[3] | termios.ECHOCTL if shown else settings[3] & ~termios.ECHOCTL
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
        return before
    return False
