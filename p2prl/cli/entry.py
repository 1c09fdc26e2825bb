"""Entry point of `p2prl`: turns an error into a message, a remedy and an exit code, never a traceback."""

from __future__ import annotations

import _thread
import codecs
import errno
import io
import os
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING

from p2prl import exit_codes
from p2prl.plain_text import printable_bytes

if TYPE_CHECKING:
    import typer

_MACHINE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.EFBIG,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOMEM,
    errno.EBUSY,
    errno.ETXTBSY,
}
"""Errors of a disk or its permissions that no role has turned into a `MachineError`."""


_AGAIN_S = 0.05
"""Until then the destructor has ended."""


def main() -> None:
    """Run `p2prl`."""
    codecs.register_error("p2prl", printable_bytes)
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by the shell, as with `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="p2prl")  # in a locale of 8 bits, no sign of ours may end the program
    _end_as_after_ctrl_c()
    try:
        from p2prl.cli.app import app

        run_app(app, program="p2prl")
    except KeyboardInterrupt:  # also during an import
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # a second one while Python ends would print a traceback
        sys.exit(exit_codes.INTERRUPTED)


def _end_as_after_ctrl_c() -> None:
    """Let SIGTERM and a closed terminal end a command as Ctrl-C does: what it has begun to write is removed."""
    for name in ("SIGTERM", "SIGHUP"):
        if (number := getattr(signal, name, None)) and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    sys.unraisablehook = interrupt_again


def interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that came while a destructor ran, such as those of `regex`: Python drops it there."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    again = threading.Timer(_AGAIN_S, _thread.interrupt_main, (signal.SIGTERM,))
    again.daemon = True
    again.start()


def run_app(app: typer.Typer, *, program: str, arguments: list[str] | None = None) -> None:
    """Run a typer app with the exit codes and error messages of `p2prl`; `arguments` default to the process's own.

    An unexpected error leaves its traceback in a file (`p2prl.cli.crash_log`), and the message names that file.
    """
    from p2prl.cli import crash_log
    from p2prl.errors import P2PRLError
    from p2prl.redaction import redact_unhandled

    redact_unhandled()
    try:
        app(args=arguments, prog_name=program)
    except P2PRLError as error:
        _print_error(str(error), error.remedy)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader closed the pipe (`p2prl … | head`): exit quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exit_codes.UNEXPECTED)
    except Exception as error:  # noqa: BLE001 - the outermost frame
        if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
            where = f": {error.filename}" if error.filename else ""
            message = f"{error.strerror}{where}" if error.strerror else str(error)
            _print_error(message, "Check space and permissions, then run the command again.")
            sys.exit(exit_codes.MACHINE)
        file = crash_log.write(error)
        _print_error(
            f"unexpected {type(error).__name__}; the details are in {file}", "Please report it with that file."
        )
        sys.exit(exit_codes.UNEXPECTED)


def _print_error(message: str, remedy: str) -> None:
    from p2prl.plain_text import cleaned, encodable, wrapped

    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
    for label, text in (("p2prl: ", message), ("       ", remedy)):
        if text:
            lines = wrapped(encodable(cleaned(text), sys.stderr.encoding or "utf-8"), width - len(label))
            print(label + ("\n" + " " * len(label)).join(line.strip() for line in lines), file=sys.stderr)  # noqa: T201
