"""`p2prl init --environment`: one command to a run that brings its environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("wasmtime", reason="needs the extra agents")

from p2prl.config.new_run import open_run
from p2prl.config.run_data import folder_data
from p2prl.tasks.wasm.runtime import from_text
from tests.unit.cli.invocation import invoke, json_of
from tests.unit.models.chat_tokenizer import save_chat_model
from tests.unit.tasks.wasm.written_modules import EXAMPLES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("init") / "model")


def test_an_environment_travels_with_the_run(model: Path, tmp_path: Path) -> None:
    binary = tmp_path / "calculator.wasm"
    binary.write_bytes(from_text((EXAMPLES / "calculator.wat").read_bytes()))
    options = ("--model", model, "--in", tmp_path, "--max-new-tokens", 64, "--probe", "off")
    brought = ("--environment", EXAMPLES / "sticks.wat", "--environment", f"tool={binary}@3")
    result = invoke("init", "mine", *options, *brought)
    assert result.exit_code == 0, result.output
    said = re.sub(r"\s+", " ", result.stderr)
    assert "Environment sticks: 565 bytes; " in said
    assert (
        "Environment tool: 899 bytes; 416 episodes played twice alike, with 1,121 of 10,000,000 fuel at most." in said
    )
    run = open_run(tmp_path / "mine")
    assert {share.task: share.weight for share in run.manifest.tasks} == {"sticks": 1.0, "tool": 3.0}
    assert run.manifest.goal == "train the model on the environment sticks, the environment tool"
    assert "an environment that the learner's owner chose" in run.manifest.content_policy
    assert (run.directory / "files" / "tool.wasm").read_bytes() == binary.read_bytes()
    assert run.manifest.turn_frame[1].endswith("[assistant]"), "messages are rendered by the chat template"
    assert sorted(folder_data(run).environments) == ["sticks", "tool"]


def test_the_probe_plays_it(model: Path, tmp_path: Path) -> None:
    options = ("--model", model, "--in", tmp_path, "--max-new-tokens", 16, "--probe", 2, "--force", "--task", "guess")
    facts = json_of("init", "mine", *options, "--environment", EXAMPLES / "sticks.wat")
    assert facts["tasks"] == {"guess": 1.0, "sticks": 1.0}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--environment", "missing.wat"), "--environment missing.wat: No such file or directory"),
        (("--environment", f"guess={EXAMPLES / 'sticks.wat'}"), "'guess' is the name of a task that is installed"),
        (("--environment", EXAMPLES / "sticks.wat", "--environment", EXAMPLES / "sticks.wat"), "two environments have"),
        (("--environment", f"{EXAMPLES / 'sticks.wat'}@-1"), "--environment"),
        (("--environment", EXAMPLES / "sticks.wat", "--reward", "success+0.2*process"), "nothing judges those of"),
    ],
)
def test_wrong_options_are_named(model: Path, tmp_path: Path, arguments: tuple[object, ...], problem: str) -> None:
    refusal = invoke("init", "mine", "--model", model, "--in", tmp_path / "runs", *arguments).exception
    assert problem in str(refusal)
    assert refusal.remedy
    assert not (tmp_path / "runs").exists()


def test_a_module_that_no_run_could_use_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "clock.wat").write_text('(module (import "env" "now" (func (result i64))))')
    (tmp_path / "large.wat").write_bytes(b" " * (8 * 1024 * 1024 + 1))
    for file, problem in (("clock", "it imports env.now"), ("large", "has more than 8,388,608 bytes")):
        options = ("--model", tmp_path / "no model", "--in", tmp_path / "runs")
        refusal = invoke("init", "mine", *options, "--environment", tmp_path / f"{file}.wat").exception
        assert problem in str(refusal)


def test_an_environment_needs_a_model(tmp_path: Path) -> None:
    refusal = invoke("init", "mine", "--in", tmp_path, "--environment", EXAMPLES / "sticks.wat").exception
    assert "there is no model for these tasks" in str(refusal)
