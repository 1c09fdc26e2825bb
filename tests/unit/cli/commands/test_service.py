"""`p2prl service`: files that start exactly the command that was asked for, and no root."""

from __future__ import annotations

import json
import os
import plistlib
import re
import sys
from pathlib import Path

import pytest

from p2prl.cli.commands.service import launchd_agent, planned_service, systemd_unit
from p2prl.errors import ConfigError
from tests.command_doc import json_keys
from tests.unit.cli.invocation import invoke

PEER = "12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"
LINK = f"p2prl://chain@{'a' * 52}?b=/ip4/127.0.0.1/tcp/9/p2p/{PEER}"


def words_of(unit: str) -> list[str]:
    """The command of a unit as systemd reads it: its quoting, specifiers and variables undone."""
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    quoted = [re.sub(r"\\(.)", r"\1", first) if first else second for first, second in found]
    return [word.replace("%%", "%").replace("$$", "$") for word in quoted]


def settings(unit: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))


def test_the_unit_starts_the_very_command_and_is_hardened(tmp_path: Path) -> None:
    plan = planned_service(LINK, run="join", options="--device cuda:1", manager="systemd", home=tmp_path)
    expected = [sys.executable, "-m", "p2prl", "join", LINK, "--home", str(tmp_path), "--device", "cuda:1"]
    assert words_of(plan.text) == expected
    unit = settings(plan.text)
    assert unit["RestartPreventExitStatus"].split() == ["2", "3", "4", "5", "6", "9", "10", "11"]
    assert unit["ReadWritePaths"] == str(tmp_path)
    for setting in ("NoNewPrivileges", "PrivateTmp", "ProtectKernelTunables", "RestrictSUIDSGID", "LockPersonality"):
        assert unit[setting] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert "User" not in unit
    assert plan.name == "p2prl-chain-join"


@pytest.mark.parametrize("word", ["a b", 'say "x"', "100%", "$HOME", "back\\slash", "%h"])
def test_words_reach_the_command_as_they_are(word: str, tmp_path: Path) -> None:
    command = ["python", "-m", "p2prl", "join", word]
    assert words_of(systemd_unit(command, tmp_path)) == command
    agent = plistlib.loads(launchd_agent("org.p2prl.x", command, tmp_path).encode())
    assert agent["ProgramArguments"] == command


def test_the_agent_starts_again_only_after_a_failure(tmp_path: Path) -> None:
    plan = planned_service(LINK, run="seed", options="", manager="launchd", home=tmp_path)
    agent = plistlib.loads(plan.text.encode())
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["Umask"] == 0o077
    assert agent["Label"] == plan.name == "org.p2prl.p2prl-chain-seed"
    assert plan.path.name == f"{plan.name}.plist"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "learn"}, "no worker"),
        ({"manager": "cron"}, "not known"),
        ({"options": "'open"}, "cannot be read"),
        ({"options": "'a\nExecStartPre=b'"}, "line break"),
        ({"link": "p2prl://x"}, "it was cut off"),
    ],
)
def test_wrong_requests_are_refused(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    request = {"link": LINK, "run": "join", "options": "", "manager": "systemd", **changes}
    link = request.pop("link")
    with pytest.raises(ConfigError, match=words):
        planned_service(link, **request, home=tmp_path)


def test_print_changes_nothing_and_install_writes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    options = ["--manager", "systemd", "--home", str(tmp_path)]
    shown = invoke("service", "print", LINK, *options)
    assert shown.stdout.startswith("[Unit]")
    assert "systemctl --user" in shown.stderr
    assert not (tmp_path / "config").exists()
    assert isinstance(invoke("service", "install", LINK, *options).exception, ConfigError), "without --user"
    for _ in range(2):
        done = invoke("service", "install", LINK, "--user", *options, "--json")
        document = json.loads(done.stdout)
        assert set(document) == json_keys("p2prl service install")
        assert Path(document["path"]).read_text() == shown.stdout
    Path(document["path"]).write_text("mine")
    assert isinstance(invoke("service", "install", LINK, "--user", *options).exception, ConfigError)


@pytest.mark.parametrize(
    ("run", "options"), [("join", "--nosuch 3"), ("join", "--threads x"), ("seed", "--device cpu"), ("join", "stray")]
)
@pytest.mark.parametrize("command", [("print",), ("install", "--user")])
def test_options_that_the_worker_would_refuse_make_no_service(
    command: tuple[str, ...], run: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    done = invoke("service", *command, LINK, "--run", run, f"--options={options}", "--home", tmp_path)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert not (tmp_path / "config").exists()


def test_options_that_the_worker_takes_are_in_the_service(tmp_path: Path) -> None:
    done = invoke("service", "print", LINK, "--options=--device cpu --upload-mbit 5", "--home", tmp_path)
    assert done.exit_code == 0
    assert "--upload-mbit" in done.stdout


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HOME": ""}, "HOME is empty"),
        ({"HOME": "ada"}, "HOME is 'ada', which is no absolute path"),
        ({"XDG_CONFIG_HOME": "config"}, "XDG_CONFIG_HOME is 'config', which is no absolute path"),
    ],
)
def test_no_service_is_written_below_the_root_folder_or_the_current_one(
    environment: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = invoke("service", "install", LINK, "--user", "--manager", "systemd", "--home", tmp_path / "home")
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_config_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    plan = planned_service(LINK, run="join", options="", manager="systemd", home=tmp_path)
    assert plan.path == tmp_path / ".config" / "systemd" / "user" / f"{plan.name}.service"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, and a folder of somebody else")
def test_root_writes_no_service_into_the_home_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sudo p2prl service install` does where sudo keeps HOME."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    os.chown(tmp_path, 12345, 12345)
    done = invoke("service", "install", LINK, "--user", "--manager", "systemd", "--home", tmp_path / "home")
    assert isinstance(done.exception, ConfigError)
    assert "belongs to another user" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
