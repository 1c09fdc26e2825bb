"""Redaction: no address, host or path of a log line is left, in text and in JSON, tracebacks included."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

import p2prl
from p2prl.redaction import RedactingFormatter, redact_unhandled, redacted

SECRETS = [
    "192.0.2.17",
    "192.0.2.17:4001",
    "2001:db8::1",
    "[2001:db8::1]:4001",
    "fe80::1ff:fe23:4567:890a",
    "/ip4/192.0.2.17/tcp/4001/p2p/12D3KooW",
    "/dns4/home.example.org/udp/4001/quic-v1",
    "https://home.example.org/x",
    "/home/alice/.local/share/p2prl/seat-1/key.json",
    "/Users/alice/run",
    "~/runs/mine",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("line", ["{}", "cannot dial {}", "peer {}: refused", "('{}', 7)", "no file '{}', again"])
def test_nothing_that_locates_a_machine_is_left(line: str, secret: str) -> None:
    clean = redacted(line.format(secret))
    for part in ("192.0", "2001", "fe80", "home.example", "alice", "/runs/", "4001"):
        assert part not in clean
    assert redacted(clean) == clean


@pytest.mark.parametrize("home", ["/home/alice", "/home/Alice Smith", "/Users/alice.smith"])
def test_the_user_is_not_named_by_the_home_folder(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    assert redacted(f"cannot write {home}: full") == "cannot write ~: full"
    assert redacted(f"cannot write {home}/runs/link") == "cannot write [path]/link"
    assert redacted(f'File "{home}/a b/x.py", line 3') == 'File "[path]/x.py", line 3'
    assert redacted(f"no '{home}/c', no '{home}'") == "no '[path]/c', no '~'"


def test_a_path_with_spaces_in_quotation_marks_is_one() -> None:
    assert redacted("No such file: '/data/Alice Smith/my runs/key.json'") == "No such file: '[path]/key.json'"
    assert redacted("'a' / 'b', \"c/d\"") == "'a' / 'b', \"c/d\""


@pytest.mark.parametrize(
    "text",
    ["group 8790 rejected: seed_mismatch", "12:30:01 v121 loaded in 3.2 s", "p2prl 0.1.0", "50/50 groups", "a/b"],
)
def test_other_text_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("as_json", [False, True])
def test_a_record_is_redacted_with_its_traceback(as_json: bool) -> None:
    try:
        (Path("/nowhere") / "192.0.2.17").read_text()
    except OSError:
        info = sys.exc_info()
    record = logging.LogRecord("p2prl.net", logging.WARNING, __file__, 1, "peer %s left", ("192.0.2.18",), info)
    line = RedactingFormatter(as_json=as_json).format(record)
    assert "192.0.2" not in line
    assert "FileNotFoundError" in line
    assert "[path]/tests/unit/test_redaction.py" in line, "what leads to the clone is this machine's own"
    if as_json:
        document = json.loads(line)
        assert (document["level"], document["logger"]) == ("warning", "p2prl.net")
        assert document["message"] == "peer [address] left"
        assert "\n" not in line


def test_a_program_file_keeps_what_lies_below_its_packages() -> None:
    where = Path(p2prl.__file__).parents[1]
    assert redacted(f'File "{where}/p2prl/errors.py", line 7') == 'File "[path]/p2prl/errors.py", line 7'
    installed = "/home/alice/.venv/lib/python3.12/site-packages/torch/nn/functional.py"
    assert redacted(f"in {installed}:12") == "in [path]/torch/nn/functional.py:12"
    assert redacted(f"{where}/runs/alice/run.toml") == "[path]/run.toml"


def test_a_line_that_no_handler_takes_is_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    """Python prints it: a role's own process sets no handler."""
    redact_unhandled()
    assert logging.lastResort is not None
    logging.lastResort.handle(
        logging.LogRecord(
            "p2prl.net", logging.WARNING, __file__, 1, "refused by %s", ("/ip4/192.0.2.17/tcp/4001",), None
        )
    )
    assert capsys.readouterr().err == "p2prl.net: refused by [address]\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_stranger_wrote_cannot_move_the_cursor(as_json: bool) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\u202edaed\x9b\rp2prl: all is well\nsecond line"
    error = ValueError(hostile)
    info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("p2prl.net", logging.WARNING, __file__, 1, "peer said %s", (hostile,), info)
    text = RedactingFormatter(as_json=as_json).format(record)
    if as_json:
        document = json.loads(text)
        message, text = document["message"], document["message"] + document["traceback"]
    else:
        message = text.partition("\n")[0]
    assert message.endswith("all is well second line")
    assert all(letter.isprintable() or letter == "\n" for letter in text)
