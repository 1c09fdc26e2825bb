"""The command line: typer commands, lazy imports, exit codes. The top floor."""

from __future__ import annotations

import errno
import os
import shutil
import sys

_MACHINE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EMFILE,
    errno.EFBIG,
}
"""What a disk or its permissions answer when no role was there to say it better."""


def main() -> None:
    """Entry point of `p2prl`. Turns errors into one sentence, a remedy and an exit code; never a traceback.

    What nobody foresaw leaves its traceback in a file (`p2prl.cli.crashes`), which the one sentence names.
    """
    try:
        _run()
    except KeyboardInterrupt:  # wherever it strikes, in an import too
        sys.exit(130)


def _run() -> None:
    from p2prl.cli import crashes
    from p2prl.cli.app import app
    from p2prl.errors import MachineError, P2PRLError

    try:
        app(prog_name="p2prl")
    except P2PRLError as error:
        _say(str(error), error.remedy)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone (`p2prl … | head`); say nothing more, to anyone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the outermost frame there is
        if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
            what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            _say(what, "Check space and permissions, then run the command again.")
            sys.exit(MachineError.exit_code)
        where = crashes.record(error)
        _say(f"unexpected {type(error).__name__}; the details are in {where}", "Please report it with that file.")
        sys.exit(1)


def _say(message: str, remedy: str) -> None:
    from p2prl.cli.plain import cleaned, wrapped

    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
    for label, text in (("p2prl: ", message), ("       ", remedy)):
        if text:
            lines = wrapped(cleaned(text), width - len(label))
            print(label + ("\n" + " " * len(label)).join(line.strip() for line in lines), file=sys.stderr)  # noqa: T201
