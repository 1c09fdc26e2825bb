"""`p2prl doctor`: each fact makes its finding, every failure says what to do, and the report names nobody."""

from __future__ import annotations

import getpass
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.cli.commands.doctor import bundle_text, finding_lines, repair, scrubbed, summary_line
from p2prl.cli.commands.doctor_checks import (
    FAILED,
    LEAST_DISK,
    LEAST_MEMORY,
    MOST_CLOCK_ERROR_S,
    PASSED,
    WARNING,
    KeyFile,
    MachineFacts,
    findings,
)
from p2prl.cli.commands.doctor_facts import ahead, clock, dial, key_files
from p2prl.config.worker_folder import claim_worker_folder
from p2prl.errors import ConfigError, MachineError
from p2prl.net.transports.tcp_trial import Outcome
from tests.command_doc import json_keys
from tests.unit.cli.invocation import invoke

GOOD_DEVICE = {"torch": "2.13.0", "cuda_build": "13.0", "cards": ["RTX 4070"], "device": "RTX 4070", "verdict": "fits",
               "noise": 1e-4, "allowed": 2e-3, "tokens": 192, "differing": 0}  # fmt: skip
GOOD = MachineFacts(
    python=(3, 12, 1),
    version="1.0.0",
    wire=4,
    clock_synchronized=True,
    clock_error_s=0.02,
    disk_free=10**12,
    memory_available=10**10,
    keys=(KeyFile(name="seat-1/key.json", mode=0o600, is_ours=True),),
    confinement="Landlock, seccomp, guarded sockets",
    driver="580.95",
    cards=1,
    device=GOOD_DEVICE,
    routes=("IPv4",),
)


def outcome(facts: MachineFacts, name: str) -> str:
    return next(finding.outcome for finding in findings(facts) if finding.name == name)


def test_a_good_machine_passes_every_check() -> None:
    found = findings(GOOD)
    assert {finding.outcome for finding in found} == {PASSED}
    names = ["version", "clock", "disk", "memory", "keys", "confined", "torch", "self-test", "network"]
    assert [finding.name for finding in found] == names
    assert not any(finding.cause or finding.fix for finding in found)


@pytest.mark.parametrize(
    ("name", "expected", "changes"),
    [
        ("version", FAILED, {"python": (3, 10, 9)}),
        ("clock", WARNING, {"clock_synchronized": False}),
        ("clock", PASSED, {"clock_synchronized": None}),
        ("clock", FAILED, {"clock_error_s": MOST_CLOCK_ERROR_S + 1}),
        ("clock", PASSED, {"clock_error_s": MOST_CLOCK_ERROR_S}),
        ("clock", FAILED, {"ahead_s": 3_600.0}),
        ("p2pd", PASSED, {"daemon": (("start", True, "three daemons start"),)}),
        ("p2pd", FAILED, {"daemon": (("start", False, "it printed nothing"),)}),
        ("home", FAILED, {"home_error": "cannot write to /x"}),
        ("home", WARNING, {"home_mode": 0o755}),
        ("disk", FAILED, {"disk_free": LEAST_DISK - 1}),
        ("disk", WARNING, {"disk_free": LEAST_DISK}),
        ("memory", FAILED, {"memory_available": LEAST_MEMORY - 1}),
        ("memory", WARNING, {"memory_available": LEAST_MEMORY}),
        ("key", FAILED, {"keys": (KeyFile(name="seat-1/key.json", mode=0o640, is_ours=True),)}),
        ("key", FAILED, {"keys": (KeyFile(name="seat-1/key.json", mode=0o600, is_ours=False),)}),
        ("keys", PASSED, {"keys": ()}),
        ("confined", WARNING, {"confinement": ""}),
        ("torch", FAILED, {"device": {"error": "its process ended with status -11: no message"}}),
        ("torch", FAILED, {"device": {**GOOD_DEVICE, "cuda_build": None, "cards": []}}),
        ("self-test", FAILED, {"device": {**GOOD_DEVICE, "error": "CUDA error"}}),
        ("self-test", FAILED, {"device": {**GOOD_DEVICE, "verdict": "wrong", "differing": 9}}),
        ("self-test", WARNING, {"device": {**GOOD_DEVICE, "verdict": "noisy", "noise": 0.5}}),
        ("network", FAILED, {"routes": ()}),
        ("network", FAILED, {"dialed": {"a": Outcome.NO_ANSWER, "b": Outcome.ACCEPTED}}),
        ("network", PASSED, {"dialed": {"a": Outcome.NO_ANSWER, "b": Outcome.GREETED}}),
        ("network", PASSED, {"dialed": {"a": Outcome.SHORT, "b": Outcome.GREETED}}),
        ("network", WARNING, {"dialed": {"a": Outcome.NO_ANSWER, "b": Outcome.SHORT}}),
    ],
)  # fmt: skip
def test_each_fact_makes_its_finding(name: str, expected: str, changes: dict[str, object]) -> None:
    facts = replace(GOOD, **changes)  # type: ignore[arg-type]
    assert outcome(facts, name) == expected
    for finding in findings(facts):
        if finding.outcome != PASSED:
            assert finding.name == name
            assert finding.cause, "every failure has a cause"
            assert finding.fix, "and says what to do"


def test_a_skipped_device_is_not_judged() -> None:
    assert not {"torch", "self-test"} & {finding.name for finding in findings(replace(GOOD, device={}))}


def test_lines_show_cause_and_fix_below_the_finding() -> None:
    lines = finding_lines(findings(replace(GOOD, routes=())))
    assert lines[-3].startswith("  FAIL  network   offline")
    assert "Why: The system has no route" in lines[-2]
    assert "Try: Check the cable" in lines[-1]
    assert summary_line(0, 0).startswith("All is well")
    assert summary_line(1, 2).startswith("1 failure and 2 warnings.")
    assert summary_line(0, 1).startswith("1 warning.")


def test_keys_that_others_can_read_are_found_and_closed(tmp_path: Path) -> None:
    worker = claim_worker_folder(tmp_path)
    worker.key_file.chmod(0o644)
    tmp_path.chmod(0o755)
    assert [key.mode for key in key_files(tmp_path)] == [0o644]
    done = repair(tmp_path)
    assert len(done) == 2
    assert any("seat-1/key.json" in text for text in done)
    assert [(key.name, key.mode, key.is_ours) for key in key_files(tmp_path)] == [("seat-1/key.json", 0o600, True)]
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert repair(tmp_path) == []
    worker.release()


def test_a_clock_that_went_back_is_seen_by_the_newest_file(tmp_path: Path) -> None:
    assert ahead(tmp_path, 5.0) == 0.0
    status = tmp_path / "seat-1" / "run" / "status.json"
    status.parent.mkdir(parents=True)
    status.write_text("{}")
    written = status.stat().st_mtime
    assert ahead(tmp_path, written - 100.0) == pytest.approx(100.0)
    assert ahead(tmp_path, written + 1.0) == 0.0
    assert clock()[0] in (True, False, None)


def test_peers_of_a_link_are_dialed_once() -> None:
    with socket.socket() as listening, socket.socket() as unused:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        unused.bind(("127.0.0.1", 0))
        peer = "12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"
        ends = [f"/ip4/127.0.0.1/tcp/{place.getsockname()[1]}/p2p/{peer}" for place in (listening, unused)]
        link = f"p2prl://chain@{'a' * 52}?b={ends[0]}&b={ends[1]}"
        found = dial(link)
    assert found == {ends[0]: Outcome.ACCEPTED, ends[1]: Outcome.REFUSED}
    with pytest.raises(ConfigError):
        dial("p2prl://nonsense")


def test_the_network_says_which_set_ups_the_machine_can_be() -> None:
    for dialed in ({}, {"a": Outcome.GREETED}):
        home, rented = (replace(GOOD, dialed=dialed, has_public_address=is_public) for is_public in (False, True))
        assert "p2prl learn --via" in findings(home)[-1].text
        assert "p2prl seed" in findings(rented)[-1].text


SECRETS = {"/home/ada": "<home>", "ada": "<user>", "attic": "<host>"}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("dial 203.0.113.9:4001 failed", "dial <address>:4001 failed"),
        ("peer /ip4/10.0.0.7/tcp/4001/p2p/12D3KooWGzx gone", "peer <address> gone"),
        ("fe80::1ff:fe23:4567:890a up", "<address> up"),
        ("join p2prl://chain@abc?b=/ip4/1.2.3.4", "join <link>"),
        ("see https://example.org/x?y", "see <address>"),
        ("ada@example.org wrote", "<user>@example.org wrote"),
        ("bob@example.org wrote", "<mail> wrote"),
        ("open /home/ada/runs/key.json", "open <home>/runs/key.json"),
        ("open /home/bob/runs", "open <path>"),
        ('File "/home/ada/.venv/lib/python3.11/site-packages/torch/x.py", line 3', 'File "torch/x.py", line 3'),
        ("host attic, user ada", "host <host>, user <user>"),
        ("canada stays", "canada stays"),
        ("key 00112233445566778899aabbccddeeff", "key <number>"),
        ("torch 2.13.0 at 12:30:05", "torch 2.13.0 at 12:30:05"),
    ],
)
def test_what_names_a_person_or_a_place_is_replaced(text: str, clean: str) -> None:
    assert scrubbed(text, SECRETS) == clean


@given(st.lists(st.tuples(*[st.integers(0, 255)] * 4), min_size=1), st.text(max_size=40))
def test_no_address_survives(addresses: list[tuple[int, int, int, int]], between: str) -> None:
    spelled = [".".join(map(str, address)) for address in addresses]
    text = scrubbed(f" {between} ".join(["", *spelled, ""]), {})
    left = set(text.split())
    assert not left & {address for address in spelled if address not in between.split()}


def test_the_report_names_nobody_and_keeps_the_findings() -> None:
    facts = replace(GOOD, dialed={"/ip4/203.0.113.9/tcp/1": Outcome.NO_ANSWER})
    log = 'File "/home/ada/.venv/lib/python3.11/site-packages/p2prl/x.py"\nConnectionError: 203.0.113.9'
    text = bundle_text(findings(facts), {"system": "Linux"}, {"seat-1/crash.log": log}, secrets=SECRETS)
    assert "FAIL  network" in text
    assert "system: Linux" in text
    assert "p2prl/x.py" in text
    assert "203.0.113" not in text
    assert "ada" not in text


def test_the_command_shows_the_report_before_it_writes_one(tmp_path: Path) -> None:
    home, report = tmp_path / "home", tmp_path / "report.txt"
    claim_worker_folder(home).release()
    shown = invoke("doctor", "--skip-device", "--home", home, "--bundle", report)
    assert isinstance(shown.exception, MachineError)
    assert "--yes" in shown.exception.remedy
    assert "p2prl doctor report" in shown.stderr
    assert not report.exists()
    invoke("doctor", "--skip-device", "--home", home, "--bundle", report, "--yes")
    text = report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600
    again = invoke("doctor", "--skip-device", "--home", home, "--bundle", report, "--yes").exception
    assert str(again) == f"{report} is there already"
    assert report.read_text() == text
    assert str(tmp_path) not in text
    assert socket.gethostname() not in text.split()
    assert getpass.getuser() not in text.split()


def test_documented_keys(tmp_path: Path) -> None:
    result = invoke("doctor", "--skip-device", "--home", tmp_path, "--json")
    document = json.loads(result.stdout)
    assert set(document) == json_keys("p2prl doctor")
    assert result.exit_code == (4 if document["failures"] else 0)
