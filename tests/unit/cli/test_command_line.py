"""The command line's promises: light help, documented options and keys, exit codes, one sentence and a remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from p2prl import cli, errors
from p2prl.cli import crash_log
from p2prl.cli.app import app
from p2prl.cli.commands.join_worker import progress_document
from p2prl.cli.commands.sim_run import simulation_document
from p2prl.cli.commands.validate_worker import audit_document
from p2prl.client.service import Progress
from p2prl.config.presets import preset_by_name
from p2prl.config.run_settings import init_run, open_run
from p2prl.learner.journal import Journal
from p2prl.learner.run_plan import RunPlan
from p2prl.models.tiny_models import tiny_model
from p2prl.protocol.identity import Identity
from p2prl.sim.swarm import SwarmConfig, SwarmResult
from p2prl.validator.service import Audit
from tests.command_doc import DOC, json_keys, section

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def commands() -> dict[str, click.Command]:
    """Every command by its full name."""
    found: dict[str, click.Command] = {}

    def walk(command: Any, name: str) -> None:
        for child_name, child in getattr(command, "commands", {}).items():
            walk(child, f"{name} {child_name}")
        if not hasattr(command, "commands"):
            found[name] = command

    walk(typer.main.get_command(app), "p2prl")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose learner has been started once."""
    folder = tmp_path_factory.mktemp("cli")
    made = tiny_model(seed=3)
    made.model.save_pretrained(folder / "model")
    made.tokenizer.save_pretrained(folder / "model")
    plan = RunPlan(name="unit", goal="test", task="chain4", model=str(folder / "model"))
    settings = preset_by_name("chain4").settings_text()
    init_run(folder / "run", plan, settings=settings, on_progress=lambda stage, share: None)
    Journal(folder / "run" / "journal.db").close()
    return folder / "run"


def invoke(*arguments: object, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


def document(*arguments: object) -> dict[str, Any]:
    """The one JSON object on standard output."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    made: dict[str, Any] = json.loads(line)
    return made


# --- help ---------------------------------------------------------------------------------------------------------


def test_help_answers_at_once_and_needs_no_torch() -> None:
    probe = (
        "import sys; sys.argv = ['p2prl', '--help']\n"
        "from p2prl.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'hivemind', 'matplotlib', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    best = min(processor_seconds([sys.executable, "-c", probe]) for _ in range(3))
    assert best < 1.0, f"{best:.2f} s"


def processor_seconds(arguments: list[str]) -> float:
    """What a command costs; unlike its wall time, it says nothing of what else the machine is doing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(arguments, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    assert all(room in result.stdout for room in ("Volunteer", "Operate", "Inspect"))
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


LIGHT = ("status_read", "key_files", "board_serve", "ledger_check", "join_worker", "validate_worker", "seed_worker")


@pytest.mark.parametrize("module", [*LIGHT, "init_run", "learn_run", "eval_run"])
def test_light_commands_stay_light(module: str) -> None:
    probe = f"import sys, p2prl.cli.commands.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True, env=ENVIRONMENT)


REFUSED_AT_ONCE = [
    ("join", "p2prl://chain@abc"),
    ("validate", "p2prl://chain@abc"),
    ("learn", "/nowhere"),
    ("eval", "/nowhere"),
    ("board", "/nowhere"),
    ("board", "/nowhere", "--host", "256.0.0.1"),
    ("ledger", "verify", "/nowhere"),
]


@pytest.mark.parametrize("arguments", REFUSED_AT_ONCE)
def test_what_is_refused_is_refused_before_torch_is_imported(arguments: tuple[str, ...]) -> None:
    probe = (
        f"import sys; sys.argv = ['p2prl', *{arguments!r}]\n"
        "from p2prl.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code in (3, 4), end.code\n"
        "heavy = {'torch', 'transformers', 'hivemind', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, env=ENVIRONMENT, capture_output=True)


def test_a_board_on_a_used_port_is_refused_before_anything_starts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr("p2prl.cli.commands.board_serve.ledger_of", lambda *given: opened.append(given))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = invoke("board", run, "--port", taken.getsockname()[1])
    assert isinstance(result.exception, errors.MachineError)
    assert "--port" in result.exception.remedy
    assert not opened


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_and_option_is_explained_and_documented(name: str) -> None:
    result = invoke(*name.split()[1:], "--help")
    assert result.exit_code == 0
    text = section(name)
    context = click.Context(commands()[name])
    for parameter in commands()[name].get_params(context):
        for option in parameter.opts:
            if option.startswith("--") and option != "--help" and not getattr(parameter, "hidden", False):
                assert f"`{option}`" in text, f"{name} {option} is not in docs/cli.md"
                assert getattr(parameter, "help", None), f"{name} {option} has no help"


def test_the_documentation_knows_no_other_command_or_option() -> None:
    known = {"p2prl", *commands()}
    assert set(re.findall(r"^## (p2prl.*)$", DOC, re.MULTILINE)) == known
    for name, command in commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        documented = set(re.findall(r"^\| (`--.*?) \|", section(name), re.MULTILINE))
        assert set(re.findall(r"`(--[a-z-]+)`", " ".join(documented))) <= options, name


def test_no_default_is_cut_off_on_a_narrow_terminal() -> None:
    for name in commands():
        result = CliRunner().invoke(app, [*name.split()[1:], "--help"], env={"COLUMNS": "80"})
        shown = re.sub(r"[\s│]", "", result.stdout)
        assert result.exit_code == 0
        for parameter in commands()[name].params:
            if isinstance(parameter.default, str) and parameter.default and not parameter.hidden:  # type: ignore[attr-defined]
                assert parameter.default.replace(" ", "") in shown, (name, parameter.name)


# --- JSON ---------------------------------------------------------------------------------------------------------


def test_documents_have_the_documented_keys(run: Path, tmp_path: Path) -> None:
    folder = open_run(run)
    assert set(document("status", "--home", tmp_path)) == json_keys("p2prl status")
    assert set(document("key", "show", "--home", tmp_path)) == json_keys("p2prl key show")
    made = document("init", "other", "--in", tmp_path, "--model", folder.directory / "model")
    assert set(made) == json_keys("p2prl init")
    evaluated = document("eval", run, "--prompts", 8, "--device", "cpu")
    assert set(evaluated) == json_keys("p2prl eval")
    assert set(document("ledger", "dump", run, tmp_path / "ledger")) == json_keys("p2prl ledger dump")
    for source in (run, tmp_path / "ledger"):
        assert set(document("ledger", "verify", source)) == json_keys("p2prl ledger verify")
    assert set(document("board", run)) == json_keys("p2prl board")


def test_workers_documents_have_the_documented_keys() -> None:
    common = {"role", "run", "peer"}
    progress = Progress("", 0, 0, {}, {}, {}, 0, 0.0, 0.0, (-1, 0, 0), 0, 0, 0, 0, 0)
    assert common | set(progress_document(progress)) == json_keys("p2prl join")
    assert common | set(audit_document(Audit(0, 0, 0, 0, 0, 0))) == json_keys("p2prl validate")


def test_a_simulations_document_has_the_documented_keys() -> None:
    config = SwarmConfig(volunteers=1, updates=1, delay="const:0")
    result = SwarmResult(
        trace_hash="", reward_before=0.0, reward_after=0.0, updates=1, staleness=(0.0, 0.0, 0.0), virtual_s=0.0,
        messages=0, bytes=0, groups_verified=0, groups_rejected=0, caught_up_s=0.0,
    )  # fmt: skip
    assert set(simulation_document(config, result, wall_s=0.0)) == json_keys("p2prl sim")


def test_a_run_that_exists_is_shown_by_status(run: Path) -> None:
    (worker,) = document("status", run)["workers"]
    assert (worker["run"], worker["role"], worker["running"]) == ("unit", "learner", False)


# --- keys ---------------------------------------------------------------------------------------------------------


def test_a_key_survives_on_paper(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    words = "legal winner thank year wave sausage worth useful legal winner thank yellow"
    assert invoke("key", "restore", "--home", first, stdin=words + "\n").exit_code == 0
    written = invoke("key", "backup", "--home", first).stdout
    assert written == words + "\n"
    assert invoke("key", "restore", "--home", second, stdin=written).exit_code == 0
    peers = [document("key", "show", "--home", home)["seats"] for home in (first, second)]
    assert peers[0] == peers[1]
    result = invoke("key", "restore", "--home", first, stdin=words + "\n")
    assert isinstance(result.exception, errors.IdentityError)
    assert "exists already" in str(result.exception)


def test_any_listed_seat_can_be_backed_up_and_no_other(tmp_path: Path) -> None:
    words = "legal winner thank year wave sausage worth useful legal winner thank yellow"
    for seat in ("2", "validator-1"):
        assert invoke("key", "restore", "--home", tmp_path, "--seat", seat, stdin=words + "\n").exit_code == 0
    listed = document("key", "show", "--home", tmp_path)["seats"]
    assert set(listed) == {"seat-2", "validator-1"}
    for seat in (*listed, "2"):
        assert invoke("key", "backup", "--home", tmp_path, "--seat", seat).stdout == words + "\n"
    absent = invoke("key", "backup", "--home", tmp_path).exception
    assert isinstance(absent, errors.IdentityError)
    assert "seat-2, validator-1" in absent.remedy
    assert "words" not in absent.remedy
    for bad in ("../x", "key.json", "seat-", ""):
        assert isinstance(invoke("key", "backup", "--home", tmp_path, "--seat", bad).exception, errors.ConfigError), bad


# --- errors -------------------------------------------------------------------------------------------------------


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
    assert {kind.exit_code for kind in kinds} | {0, 2, 9, 130} == documented


def test_a_full_disk_nobody_foresaw_is_the_machines_fault(
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
    elsewhere.unlink()


USAGE = [("bogus",), ("learn",), ("join",), ("init", "x", "--group-size", "many"), ("validate", "x", "--rate", "2")]


@pytest.mark.parametrize("arguments", USAGE)
def test_usage_errors_are_2(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


SOME_LINK = f"p2prl://chain@{'a' * 52}?b=/ip4/127.0.0.1/tcp/1/p2p/{Identity(bytes(16)).peer_id}"

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
    (("status", "/nowhere"), errors.ConfigError, "not a run folder"),
    (("board", "/nowhere", "--json"), errors.ConfigError, "not a run folder"),
    (("ledger", "verify", "/nowhere"), errors.MachineError, "cannot be read"),
    (("init", "a b"), errors.ConfigError, "cannot name a run"),
    (("init", "x", "--preset", "y"), errors.ConfigError, "no preset"),
    (("init", "x", "--temperature", "0"), errors.ConfigError, "temperature"),
    (("init", "x", "--dtype", "int4"), errors.ConfigError, "dtype"),
    (("sim", "--partition", "5"), errors.ConfigError, "FROM:TO"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), REFUSED)
def test_what_is_refused_is_refused_in_words(
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
