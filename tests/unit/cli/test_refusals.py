"""Bad arguments: refused with a sentence and a remedy, before torch is imported and before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from p2prl import errors
from p2prl.cli.commands.worker_start import _FIND_BASE
from p2prl.protocol.identity import Identity
from tests.unit.cli.invocation import invoke
from tests.unit.cli.light_imports import outcomes

SOME_LINK = f"p2prl://chain@{'a' * 52}?b=/ip4/127.0.0.1/tcp/1/p2p/{Identity(bytes(16)).peer_id}"

REFUSED_AT_ONCE = [
    ("join", "p2prl://chain@abc"),
    ("validate", "p2prl://chain@abc"),
    ("learn", "/nowhere"),
    ("eval", "/nowhere"),
    ("export", "/nowhere"),
    ("export", "/nowhere", "--dtype", "int8"),
    ("export", "/nowhere", "--private"),
    ("board", "/nowhere"),
    ("board", "/nowhere", "--host", "256.0.0.1"),
    ("ledger", "verify", "/nowhere"),
    ("ledger", "verify", "/etc/passwd"),
    ("init", "x", "--max-new-tokens", "1000000"),
    ("init", "x", "--temperature", "0"),
    ("init", "x", "--dtype", "int8"),
    ("init", "x", "--reward", "foo+bar"),
    ("init", "x", "--in", "/proc"),
    ("init", "x", "--model", "/m", "--data", "/nowhere.jsonl", "--scorer", "number"),
    ("init", "x", "--model", "/m", "--data", "/etc/passwd", "--scorer", "number"),
    ("init", "x", "--model", "/m", "--data", "/etc/passwd", "--scorer", "guess"),
    ("init", "x", "--model", "/m", "--chat-template", "/nowhere"),
    ("join", SOME_LINK, "--transport", "foo"),
    ("join", SOME_LINK, "--home", "/proc/x"),
    ("validate", SOME_LINK, "--transport", "foo"),
    ("learn", "/nowhere", "--transport", "foo"),
    ("learn", "/nowhere", "--track", "foo"),
    ("learn", "/nowhere", "--listen", "/ip4/0.0.0.0/tcp/99999"),
    ("validate", SOME_LINK, "--listen", "localhost:4001"),
]


@pytest.fixture(scope="module")
def refusals() -> dict[tuple[str, ...], str]:
    """What went wrong with each command line of `REFUSED_AT_ONCE`."""
    programs = [
        f"import sys; sys.argv = ['p2prl', *{arguments!r}]\n"
        "from p2prl.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code in (3, 4), end.code\n"
        "else:\n    assert False, 'it was not refused'\n"
        "heavy = {'torch', 'transformers', 'hivemind', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        for arguments in REFUSED_AT_ONCE
    ]
    shells = ("join_worker", "validate_worker", "init", "learn", "export", "board", "ledger")
    found = outcomes(programs, loaded=[f"p2prl.cli.commands.{shell}" for shell in shells])
    return dict(zip(REFUSED_AT_ONCE, found, strict=True))


@pytest.mark.parametrize("arguments", REFUSED_AT_ONCE)
def test_wrong_input_is_refused_before_torch_is_imported(
    arguments: tuple[str, ...], refusals: dict[tuple[str, ...], str]
) -> None:
    assert refusals[arguments] == ""


REFUSED: list[tuple[tuple[str, ...], type[errors.P2PRLError], str]] = [
    (("join", "http://x"), errors.ConfigError, "starts with p2prl://"),
    (("join", "p2prl://chain@abc"), errors.ConfigError, "cut off"),
    (("validate", "p2prl://chain@" + "a" * 52), errors.ConfigError, "names no peer"),
    (("learn", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("learn", "/nowhere", "--upload-mbit", "2e6"), errors.ConfigError, "--upload-mbit 2e+06"),
    (("join", SOME_LINK, "--base", "./none"), errors.ConfigError, "there is no directory ./none"),
    (("validate", SOME_LINK, "--base", "/nowhere"), errors.ConfigError, "there is no directory /nowhere"),
    (("validate", SOME_LINK, "--monthly-gb", "inf"), errors.ConfigError, "--monthly-gb inf"),
    (("eval", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("export", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("export", "/nowhere", "--dtype", "int8"), errors.ConfigError, "--dtype is 'int8'"),
    (("export", "/nowhere", "--private"), errors.ConfigError, "without --push"),
    (("status", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("board", "/nowhere", "--json"), errors.ConfigError, "not a run folder"),
    (("ledger", "verify", "/nowhere"), errors.MachineError, "/nowhere cannot be read: No such file or directory"),
    (("bench", "machine", "--models", ""), errors.ConfigError, "models is ''"),
    (("bench", "engine", "--device", "abacus"), errors.ConfigError, "'abacus' is not a device"),
    (("bench", "engine", "--device", "xpu"), errors.MachineError, "no usable xpu device"),
    (("bench", "engine", "--pairs", "--device", "xpu"), errors.MachineError, "no usable xpu device"),
    (("bench", "draw", "--device", "xpu"), errors.MachineError, "no usable xpu device"),
    (("bench", "publish", "--device", "xpu"), errors.MachineError, "no usable xpu device"),
    (("bench", "swap", "--device", "xpu"), errors.MachineError, "no usable xpu device"),
    (("init", "a b"), errors.ConfigError, "is not a valid run name"),
    (("init", ".."), errors.ConfigError, "is not a valid run name"),
    (("init", "x", "--preset", "y"), errors.ConfigError, "no preset"),
    (("init", "x", "--temperature", "0"), errors.ConfigError, "--temperature is 0.0; it must be from 0.01 to 100"),
    (("init", "x", "--max-new-tokens", "1000000"), errors.ConfigError, "--max-new-tokens is 1000000"),
    (("init", "x", "--dtype", "int4"), errors.ConfigError, "--dtype"),
    (("init", "x", "--reward", "foo+bar"), errors.ConfigError, "--reward"),
    (("init", "x", "--in", "/proc"), errors.MachineError, "cannot write to /proc"),
    (("init", "x", "--model", "m", "--data", "none.jsonl"), errors.ConfigError, "no file none.jsonl"),
    (("init", "x", "--model", "m", "--data", "none*.jsonl"), errors.ConfigError, "no file none*.jsonl"),
    (("init", "x", "--model", "m", "--data", "/etc/passwd"), errors.ConfigError, "no scorer"),
    (
        ("init", "x", "--model", "m", "--data", "none.jsonl", "--scorer", "exact"),
        errors.ConfigError,
        "no file none.jsonl",
    ),
    (
        ("init", "x", "--model", "m", "--data", "/etc/passwd", "--scorer", "exact"),
        errors.ConfigError,
        "passwd, line 1: ",
    ),
    (("init", "x", "--scorer", "exact"), errors.ConfigError, "--scorer is about a data set"),
    (("init", "x", "--task", "chain4", "--task", "walk12"), errors.ConfigError, "there is no model"),
    (("init", "x", "--task", "chain4@0"), errors.ConfigError, "the weight must be"),
    (("init", "x", "--chat-template", "none.jinja"), errors.ConfigError, "--chat-template none.jinja cannot be read"),
    (("join", SOME_LINK, "--transport", "foo"), errors.ConfigError, "unknown transport"),
    (("seed", SOME_LINK, "--home", "/proc/x"), errors.MachineError, "cannot write to /proc/x"),
    (("learn", "/nowhere", "--track", "foo"), errors.ConfigError, "unknown tracker"),
    (("learn", "/nowhere", "--listen", "4001"), errors.ConfigError, "'4001' is not an address"),
    (("join", SOME_LINK, "--listen", "/ip4/0.0.0.0/tcp/99999"), errors.ConfigError, "'99999' is not a port"),
    (("ledger", "verify", "/etc/passwd"), errors.ConfigError, "not a ledger dump"),
    (("sim", "--partition", "5"), errors.ConfigError, "FROM:TO"),
    (("sim", "--model", "7b"), errors.ConfigError, "no model"),
    (("sim", "--model", "none", "--delay", "slow"), errors.ConfigError, "not a delay"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), REFUSED)
def test_wrong_input_is_refused_with_a_remedy(
    arguments: tuple[str, ...],
    kind: type[errors.P2PRLError],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("P2PRL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert isinstance(result.exception, kind), result.exception
    assert words in str(result.exception)
    assert result.exception.remedy
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_base_model_is_looked_for_without_torch() -> None:
    """It would take seconds to say that a directory is misspelled."""
    program = (
        f"import sys; sys.argv = ['-c', './none']\n{_FIND_BASE}\n"
        "assert found['error'] == 'there is no directory ./none', found\n"
        "heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert outcomes([program], loaded=[]) == [""]


def test_an_unwritable_home_is_blamed_on_where_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PRL_HOME", "/proc/y")
    assert "--home" in invoke("seed", SOME_LINK, "--home", "/proc/x").exception.remedy
    assert "P2PRL_HOME" in invoke("seed", SOME_LINK).exception.remedy


def test_a_damaged_run_toml_is_refused_before_the_run_is_locked(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "run.toml").write_text("[learner\n")
    assert "is not TOML" in str(invoke("learn", folder).exception)
    assert not (folder / "lock").exists()


def test_a_path_as_the_name_of_a_new_run_is_split_for_the_user() -> None:
    refused = invoke("init", "/srv/my runs/first").exception
    assert isinstance(refused, errors.ConfigError)
    assert refused.remedy.endswith("p2prl init first --in '/srv/my runs'")


def test_a_group_of_one_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    refusal = invoke("init", "x", "--in", tmp_path, "--model", "/nowhere", "--group-size", 1).exception
    assert "one completion per prompt" in str(refusal)
    assert "--group-size 2" in refusal.remedy
    assert not list(tmp_path.iterdir())


def test_a_ledger_without_a_signed_head_says_what_that_means(run: Path, tmp_path: Path) -> None:
    for arguments in (("verify", run), ("dump", run, tmp_path / "run.ledger"), ("verify", tmp_path / "run.ledger")):
        refused = invoke("ledger", *arguments)
        assert refused.exit_code == 1
        assert "no head signed by the learner: entries may be missing" in refused.stderr


@pytest.mark.parametrize("role", ["join", "validate"])
def test_a_million_threads_are_refused_where_they_are_asked_for(role: str, tmp_path: Path) -> None:
    """torch would begin them all at the first product of matrices, and OpenMP abort the process."""
    done = invoke(role, SOME_LINK, "--threads", "1000000", "--home", tmp_path / "home")
    assert done.exit_code == 2
    assert "--threads" in done.stderr
    assert list(tmp_path.iterdir()) == []
