"""The entry point: every error is a sentence, a remedy and an exit code, never a traceback."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl import cli, errors, exit_codes
from p2prl.cli import crash_log, entry
from tests.command_doc import DOC
from tests.unit.cli.invocation import invoke


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """`main` changes what signals do in its process."""
    hook, handlers = (
        sys.unraisablehook,
        {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)},
    )
    yield
    sys.unraisablehook = hook
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> tuple[int, str]:
    """`main` when its command raises."""

    def fail(**_: object) -> None:
        raise failure

    monkeypatch.setattr("p2prl.cli.app.app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    output = capsys.readouterr()
    assert output.out == ""
    return int(str(caught.value.code)), output.err


CODES = [
    (errors.P2PRLError, 1),
    (errors.ConfigError, 3),
    (errors.MachineError, 4),
    (errors.UpdateRequiredError, 5),
    (errors.IdentityError, 6),
    (errors.UnreachableError, 7),
    (errors.TransportError, 75),
]


@pytest.mark.parametrize(("kind", "code"), CODES)
def test_every_error_is_a_sentence_a_remedy_and_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[errors.P2PRLError], code: int
) -> None:
    assert run_main(monkeypatch, capsys, kind("it broke", remedy="Mend it.")) == (
        code,
        "p2prl: it broke\n       Mend it.\n",
    )
    assert f"\n| {code} |" in DOC


def test_every_exit_code_of_an_error_is_documented() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.P2PRLError)]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOC, re.MULTILINE)}
    named = {code for code in vars(exit_codes).values() if isinstance(code, int)}
    assert {kind.exit_code for kind in kinds} < named
    assert named | {0} == documented
    again = re.search(r"restart on (.*) and (.*), and not on (.*) and (.*)\.", DOC)
    assert again is not None
    assert set(again.groups()[:2]) == {str(exit_codes.TEMPORARY), str(exit_codes.UNEXPECTED)}
    assert [*again[3].split(", "), again[4]] == [str(code) for code in exit_codes.NOT_AGAIN]


def test_an_unexpected_full_disk_is_a_machine_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run_main(monkeypatch, capsys, OSError(errno.ENOSPC, "No space left on device", "/run/x"))
    assert code == 4
    assert said.startswith("p2prl: No space left on device: /run/x\n")


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, capsys, KeyboardInterrupt()) == (130, "")


def test_a_bug_leaves_its_traceback_in_a_file_and_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    crash_log.keep_in(tmp_path)
    code, said = run_main(monkeypatch, capsys, ZeroDivisionError("division by zero"))
    (file,) = tmp_path.glob("crash-*.log")
    assert code == 1
    assert said.splitlines()[0] == f"p2prl: unexpected ZeroDivisionError; the details are in {file}"
    assert "Traceback" not in said
    text = file.read_text()
    assert "Traceback (most recent call last)" in text
    assert "ZeroDivisionError: division by zero" in text
    file.unlink()
    crash_log.keep_in(tmp_path / "gone")
    _, said = run_main(monkeypatch, capsys, ZeroDivisionError("division by zero"))
    elsewhere = Path(said.splitlines()[0].rpartition(" in ")[2])
    assert "ZeroDivisionError" in elsewhere.read_text()
    assert (elsewhere.stat().st_mode & 0o777, elsewhere.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    shutil.rmtree(elsewhere.parent)


def _refuse(text: str) -> None:
    raise ValueError(text)


def test_a_crash_file_names_no_address_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    crash_log.keep_in(tmp_path)
    with pytest.raises(ValueError, match="no host") as caught:
        _refuse("no host ('192.0.2.17', 4001), said /home/alice/.local/share/p2prl/seat-1")
    text = crash_log.write(caught.value).read_text()
    assert "ValueError: no host ('[address]', 4001), said [path]/seat-1" in text
    assert "[path]/tests/unit/cli/test_entry.py" in text
    assert str(Path(crash_log.__file__).parents[2]) not in text


def test_a_crash_file_never_follows_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.cli.crash_log.time.strftime", lambda *_: "now")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "crash-now.log").symlink_to(precious)
    crash_log.keep_in(folder)
    written = crash_log.write(ZeroDivisionError("division by zero"))
    assert precious.read_text() == "mine"
    assert written.parent == folder
    assert "ZeroDivisionError" in written.read_text()
    written.unlink()
    written.symlink_to(precious)
    elsewhere = crash_log.write(ZeroDivisionError("division by zero"))
    assert precious.read_text() == "mine"
    shutil.rmtree(elsewhere.parent)


USAGE = [("bogus",), ("learn",), ("join",), ("init", "x", "--group-size", "many"), ("validate", "x", "--rate", "2")]


@pytest.mark.parametrize("arguments", USAGE)
def test_usage_errors_are_2(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_full_output_is_told_without_an_error_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = run_main(monkeypatch, capsys, OSError(errno.ENOSPC, "No space left on device"))
    assert code == 4
    assert told.startswith("p2prl: No space left on device\n")


def test_closed_streams_are_no_crash(tmp_path: Path) -> None:
    program = f"{sys.executable} -m p2prl status --json --home {tmp_path}"
    done = subprocess.run(["sh", "-c", f"{program} >&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(["sh", "-c", f"{program} 2>&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:1]) == (0, "{")


def test_a_refusal_is_readable_on_a_terminal_without_unicode() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "p2prl", "join", "no-link"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "?b=/ip4/.../tcp/.../p2p/..." in done.stderr


def test_no_sign_ends_the_program_in_a_locale_of_eight_bits() -> None:
    program = (
        "import sys\nfrom p2prl.cli import entry\nsys.argv = ['p2prl', '--version']\n"
        "try:\n    entry.main()\nexcept SystemExit:\n    print('3 → 5 of größer 数')\n"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1:strict"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "3 to 5 of größer ?".encode("latin-1")


def test_an_interrupt_in_a_destructor_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropped:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def drop_one() -> None:
        Dropped()
        threading.Event().wait(10.0)

    monkeypatch.setattr(sys, "unraisablehook", entry.interrupt_again)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        drop_one()
