"""The examples: docs/extending.md quotes them word for word, and each one, installed, does what it is there for."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from p2prl.algorithms import LOSSES, RolloutBatch
from p2prl.algorithms.process_rewards import RewardConfig
from p2prl.config import new_run
from p2prl.config.loss_config import LossConfig
from p2prl.config.new_run import RunFolder, init_run
from p2prl.config.presets import preset_by_name
from p2prl.config.roles import prepare_replay, prepare_sampling
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.training.probation import ProbationConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.engines.engine_names import ChosenEngine
from p2prl.models.engines.registry import ENGINES
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.warm_start import WarmstartConfig
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.protocol.manifests import Sampling
from p2prl.tasks.task_registry import TASKS, task_by_name
from p2prl.tasks.task_spec import TurnsDemonstration
from tests.unit.house.checkout import copy_checkout
from tests.unit.house.source_tree import ROOT

PLUGINS = ("loss", "task", "environment", "engine")
CPU = torch.device("cpu")


def test_docs_quote_every_example() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    quoted = dict(re.findall(r"^`(examples/[^`]+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    files = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in (ROOT / "examples").rglob("*")
        if path.suffix in (".py", ".toml", ".patch")
    }
    assert sorted(quoted) == sorted(files)
    for name, source in files.items():
        assert quoted[name] == source, f"docs/extending.md quotes another {name}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder the example packages are installed in."""
    source, target = tmp_path_factory.mktemp("examples"), tmp_path_factory.mktemp("site")
    copy_checkout(source, "examples")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    install += ["--no-deps", "--no-build-isolation", "--target", str(target)]
    packages = [str(source / "examples" / name) for name in PLUGINS]
    done = subprocess.run([*install, *packages], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the example packages on the path."""
    monkeypatch.syspath_prepend(str(site))


def test_the_registries_list_them() -> None:
    assert "fresh_reinforce" in LOSSES.names()
    assert {"reverse5", "nim"} <= set(TASKS.names())
    assert "plain" in ENGINES.names()


def test_the_loss_trains_from_run_settings() -> None:
    table = LossConfig(name="fresh_reinforce", options={"half_life": 4.0})
    objective = table.build(Sampling(1.0, 6, 4), RewardConfig()).objective
    batch = RolloutBatch(
        behavior_logprobs_BGT=torch.full((1, 2, 3), -1.0),
        mask_BGT=torch.ones(1, 2, 3, dtype=torch.bool),
        advantages_BG=torch.tensor([[1.0, -1.0]]),
        staleness_BG=torch.tensor([[0, 8]]),
    )
    policy = torch.full((1, 2, 3), -1.5, requires_grad=True)
    output = objective.loss(policy, batch)
    assert output.weights_BGT[0, :, 0].tolist() == [1.0, 0.25]
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert policy.grad is not None
    assert policy.grad[0, :, 0].tolist() == pytest.approx([-1 / 6, 0.25 / 6])


def test_the_loss_may_train_groups_on_probation() -> None:
    """It reads no log-probs of the sampler, and says so in its spec."""
    table = LossConfig(trust=ProbationConfig(probation_groups=8, loss="fresh_reinforce"))
    table.build(Sampling(1.0, 6, 4), RewardConfig())


@pytest.fixture
def run(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run on the example's task, with the small model the task brings."""
    monkeypatch.setattr(new_run, "WarmstartConfig", lambda: WarmstartConfig(steps=30, batch=32, warmup_steps=2))
    preset = preset_by_name("chain4", task="reverse5")
    plan = RunPlan(
        name="digits",
        goal=preset.goal,
        task=preset.task,
        model=None,
        group_size=4,
        max_new_tokens=preset.max_new_tokens,
        reward="success+0.2*process:clip",
    )
    return init_run(tmp_path / "digits", plan, settings=preset.settings_text(), on_progress=lambda *_: None)


def test_the_task_makes_a_run_and_its_demonstrations_earn_rewards(run: RunFolder) -> None:
    spec = task_by_name("reverse5")
    assert [share.task for share in run.manifest.tasks] == ["reverse5"]
    assert run.manifest.sampling.max_new_tokens == 6
    assert not isinstance(spec.demonstration, TurnsDemonstration | None)
    rewards = [spec.task.score(*spec.demonstration(seed), finished=True).reward for seed in range(300)]
    assert 0.5 < sum(rewards) / 300 < 0.8
    assert spec.process_scorer is not None
    assert spec.process_scorer.judge("30127=", "72203", finished=True).steps == (1.0, 1.0, 0.0, 1.0, 1.0)


def test_the_environment_plays_its_demonstrations_to_the_end() -> None:
    spec = task_by_name("nim")
    assert isinstance(spec.demonstration, TurnsDemonstration)
    assert spec.small_model is not None
    rules = spec.demonstration.environment
    assert rules is spec.environment
    won = 0.0
    for seed in range(300):
        turns = spec.demonstration.turns(seed)
        said = [rules.reply(seed, turns[:number]) for number in range(1, len(turns) + 1)]
        assert [message is None for message in said] == [*[False] * (len(turns) - 1), True]
        text = rules.opening(seed) + "".join(turns) + "".join(message or "" for message in said)
        assert set(text) <= set(spec.small_model.symbols)
        assert len(text) + len(turns) <= spec.max_new_tokens + len(rules.opening(seed))
        won += rules.score(seed, turns, True).reward
    assert 0.6 < won / 300 < 0.8
    assert rules.reply(1, ("4",)) is None
    assert rules.score(1, ("4",), True).reward == 0.0


def test_the_engine_samples_what_transformers_samples(run: RunFolder) -> None:
    files = {file.name: run.directory / "files" / file.name for file in run.manifest.files}
    plain = prepare_sampling(run.manifest, files, run=run.run, device=CPU, engine=ChosenEngine("plain", ""))
    usual = prepare_sampling(run.manifest, files, run=run.run, device=CPU, engine=ChosenEngine("transformers", ""))
    replay = prepare_replay(run.manifest, files, run=run.run, device=CPU)
    with closing(plain.work), closing(usual.work), closing(replay.work):
        model = load_pretrained(str(run.directory / "model"), device=CPU, dtype="float32").model
        weights = bytes(flatten(model, layout_of(model, run.manifest.dtype)))
        assignment = usual.work.assign(beacon=bytes(32), peer=bytes(32), slot=0)
        replay.scorer.load_weights(weights)
        made = {}
        for sampler in (plain.sampler, usual.sampler):
            sampler.swap(sampler.stage(weights, 3))
            completions = made[sampler.engine_class.engine] = sample_all(sampler, assignment.requests)
            assert {generation.spans for generation in completions} == {((0, 3),)}
            scored = replay.scorer.replay(assignment.requests, [generation.token_ids for generation in completions])
            assert max(max(each.margins) for each in scored) < 1e-3
            for each, generation in zip(scored, completions, strict=True):
                assert each.logprobs == pytest.approx(generation.logprobs, abs=1e-4)
    assert [each.token_ids for each in made["plain"]] == [each.token_ids for each in made["transformers"]]
