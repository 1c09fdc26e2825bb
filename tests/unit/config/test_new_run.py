"""Run folders: created atomically; damaged ones are refused with a remedy."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.config import new_run
from p2prl.config.learner_memory import plan_learner_memory
from p2prl.config.listen_config import ListenConfig
from p2prl.config.network_options import UploadCaps
from p2prl.config.new_run import init_run, open_run
from p2prl.config.presets import preset_by_name
from p2prl.config.roles import build_learner, learner_network
from p2prl.errors import ConfigError, IdentityError, MachineError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.training.memory_config import MemoryConfig
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import WarmstartConfig
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.identity import Identity
from tests.unit.uneven_task import install_uneven_task

SETTINGS = preset_by_name("chain4").settings_text()
PLAN = RunPlan(name="unit", goal="test", task="chain4", model=None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory, so that no test needs a warm start."""
    path = tmp_path_factory.mktemp("model")
    made = tiny_model(seed=3)
    made.model.save_pretrained(path)
    made.tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def made(tmp_path: Path, model: Path) -> Path:
    folder = init_run(
        tmp_path / "run", replace(PLAN, model=str(model)), settings=SETTINGS, on_progress=lambda stage, share: None
    )
    assert folder.manifest.name == "unit"
    return tmp_path / "run"


def entries(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def test_new_run_opens_with_the_planned_manifest(made: Path) -> None:
    folder = open_run(made)
    assert folder.manifest.learner == folder.identity.public_key
    assert folder.manifest.staleness_bound == PLAN.staleness_bound
    assert folder.newest_weights() == made / "model"
    assert entries(made) == ["files", "key.json", "model", "prompts.json", "run.manifest", "run.toml"]
    assert entries(made.parent) == ["run"]


def test_learner_upload_caps_are_in_bytes(made: Path) -> None:
    network = learner_network(open_run(made), (), UploadCaps(upload_mbit=100.0, monthly_gb=2.0))
    assert (network.node.relay.upload_bytes_s, network.monthly_bytes) == (12_500_000.0, 2_000_000_000)


def test_folder_in_use_is_not_touched(made: Path, model: Path) -> None:
    before = entries(made)
    with pytest.raises(ConfigError, match="not empty"):
        init_run(made, PLAN, settings=SETTINGS, on_progress=lambda stage, share: None)
    assert entries(made) == before


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_interrupted_init_leaves_nothing(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(new_run, "seal", fail)
    expected = MachineError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        init_run(
            tmp_path / "run", replace(PLAN, model=str(model)), settings=SETTINGS, on_progress=lambda stage, share: None
        )
    assert entries(tmp_path) == []


def test_completions_longer_than_the_context_are_refused(tmp_path: Path, model: Path) -> None:
    plan = replace(PLAN, model=str(model), max_new_tokens=30)
    with pytest.raises(ConfigError, match="exceed the model's 32") as caught:
        init_run(tmp_path / "run", plan, settings=SETTINGS, on_progress=lambda stage, share: None)
    assert "--max-new-tokens 23 or less" in caught.value.remedy
    assert entries(tmp_path) == []


def test_the_longest_of_many_prompts_has_to_fit(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, run = tmp_path / "package", tmp_path / "runs" / "run"
    package.mkdir()
    plan = replace(PLAN, task=install_uneven_task(package, monkeypatch), model=str(model))
    with pytest.raises(ConfigError, match=r"6 to 41 tokens.*exceed the model's 32") as caught:
        init_run(run, plan, settings=SETTINGS, on_progress=lambda stage, share: None)
    assert "longer context" in caught.value.remedy
    monkeypatch.setattr(sys.modules["unit_uneven_task"], "LONG", 22)
    with pytest.raises(ConfigError, match="6 to 23 tokens") as caught:
        init_run(run, replace(plan, max_new_tokens=10), settings=SETTINGS, on_progress=lambda stage, share: None)
    assert "--max-new-tokens 7 or less" in caught.value.remedy, "an eighth of the spread is left for longer prompts"
    told: list[str] = []
    fitting = replace(plan, max_new_tokens=7)
    folder = init_run(run, fitting, settings=SETTINGS, on_progress=lambda stage, share: None, on_notice=told.append)
    assert "prompts has 23 tokens" in told[0]
    one_row = replace(folder.settings.learner, memory=MemoryConfig(micro_batch_tokens=1))
    folder = replace(folder, settings=replace(folder.settings, learner=one_row))
    assert plan_learner_memory(folder, torch.device("cpu"), told.append).rule.tokens == 32
    monkeypatch.setattr(sys.modules["unit_uneven_task"], "LONG", 12)
    assert plan_learner_memory(folder, torch.device("cpu"), told.append).rule.tokens == 13 + 7


def test_a_model_whose_files_volunteers_would_refuse_is_refused(tmp_path: Path, model: Path) -> None:
    changed = tmp_path / "model"
    shutil.copytree(model, changed)
    tokenizer = json.loads((changed / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["beyond"] = max(vocabulary.values()) + 1
    (changed / "tokenizer.json").write_text(json.dumps(tokenizer))
    plan = replace(PLAN, model=str(changed))
    with pytest.raises(ConfigError, match=r"volunteers would refuse this model.*tokens that the model does not"):
        init_run(tmp_path / "run", plan, settings=SETTINGS, on_progress=lambda stage, share: None)
    assert entries(tmp_path) == ["model"]


@pytest.mark.parametrize(
    ("change", "settings", "named"),
    [
        ({"group_size": 1}, SETTINGS, "one completion per prompt"),
        ({}, SETTINGS.replace("groups_per_update", "groups_per_updat"), "groups_per_updat"),
        ({}, SETTINGS.replace("dead_band_ulp = 0", "dead_band_ulp = 8388609"), "dead_band_ulp"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_the_model_is_made(
    tmp_path: Path, change: dict[str, int], settings: str, named: str
) -> None:
    stages: list[str] = []
    with pytest.raises(ConfigError, match=named):
        init_run(
            tmp_path / "run",
            replace(PLAN, **change),  # type: ignore[arg-type]
            settings=settings,
            on_progress=lambda stage, share: stages.append(stage),
        )
    assert stages == []
    assert entries(tmp_path) == []


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    plan = replace(PLAN, model="/no/such/directory")
    with pytest.raises(ConfigError, match="/no/such/directory") as caught:
        init_run(tmp_path / "run", plan, settings=SETTINGS, on_progress=lambda stage, share: None)
    assert caught.value.remedy
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", "chess"),
        ("goal", "two\nlines"),
        ("goal", ""),
        ("group_size", 0),
        ("group_size", 65),
        ("max_new_tokens", 0),
        ("publish_every", 0),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("dtype", "float64"),
        ("staleness_bound", -1),
    ],
)
def test_impossible_plan_is_refused(name: str, value: object) -> None:
    option = name.removesuffix("_bound").replace("_", "-")
    with pytest.raises(ConfigError, match=option) as caught:
        replace(PLAN, **{name: value})  # type: ignore[arg-type]
    assert name == "task" or f"--{option}" in caught.value.remedy, "the remedy names the option and a value"


@pytest.mark.parametrize("text", ["success", "0.5*success+process:clip+delta+.5*outcome", "process:delta+success"])
def test_no_valid_reward_is_refused_by_its_shape(text: str) -> None:
    parse_reward(text)
    replace(PLAN, reward=text)


def test_staleness_bound_below_the_publish_interval_is_refused() -> None:
    replace(PLAN, publish_every=4, staleness_bound=3)
    with pytest.raises(ConfigError, match="--staleness is 2"):
        replace(PLAN, publish_every=4, staleness_bound=2)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/dns4/run.example.org/tcp/4001/p2p/12D3KooWx", "holds a peer id"),
        ("/ip6zone/eth0/ip6/fe80::1/tcp/4001", "works on one local network alone"),
        ("run.example.org:4001", "is not an address"),
    ],
)
def test_an_address_that_helps_no_reader_of_the_link_is_not_announced(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ListenConfig(announce=(address,))
    assert ListenConfig(announce=("/dns4/run.example.org/tcp/4001",)).announce


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder") as caught:
        open_run(tmp_path)
    assert "p2prl init" in caught.value.remedy


@pytest.mark.parametrize("cut", [0, 40, -1])
def test_damaged_manifest_is_refused(made: Path, cut: int) -> None:
    path = made / "run.manifest"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ConfigError, match="is damaged"):
        open_run(made)


def test_another_key_is_refused(made: Path) -> None:
    (made / "key.json").unlink()
    with pytest.raises(IdentityError, match="no key file"):
        open_run(made)
    create_identity(made / "key.json", Identity(bytes(16)))
    with pytest.raises(ConfigError, match="not the key this run was made with"):
        open_run(made)
    (made / "key.json").write_text("{}")
    with pytest.raises(IdentityError, match="not a p2prl key file"):
        open_run(made)


def test_typo_in_run_toml_is_named(made: Path) -> None:
    toml = made / "run.toml"
    toml.write_text(toml.read_text().replace("groups_per_update", "groups_per_updat"))
    with pytest.raises(ConfigError, match="groups_per_updat") as caught:
        open_run(made)
    assert "groups_per_update" in caught.value.remedy


@pytest.mark.parametrize(("dtype", "widest"), [("bfloat16", 128), ("float16", 1024), ("float32", 1 << 23)])
def test_dead_band_beyond_one_binade_is_refused(tmp_path: Path, model: Path, dtype: str, widest: int) -> None:
    plan = replace(PLAN, model=str(model), dtype=dtype)
    banded = SETTINGS.replace("dead_band_ulp = 0", f"dead_band_ulp = {widest}")
    folder = init_run(tmp_path / "run", plan, settings=banded, on_progress=lambda stage, share: None)
    assert folder.settings.learner.dead_band_ulp == widest
    (tmp_path / "run" / "run.toml").write_text(banded.replace(str(widest), str(widest + 1)))
    with pytest.raises(ConfigError, match=f"dead_band_ulp is {widest + 1}.* within 0..{widest}"):
        open_run(tmp_path / "run")


def test_one_learner_per_run(made: Path) -> None:
    lock = open_run(made).lock()
    with pytest.raises(MachineError, match="another learner"):
        open_run(made).lock()
    lock.close()
    open_run(made).lock().close()


@pytest.mark.parametrize("name", ["model", "files"])
def test_missing_or_pickled_weights_are_refused(made: Path, name: str) -> None:
    if name == "model":
        (made / "model" / "model.safetensors").rename(made / "model" / "pytorch_model.bin")
    else:
        shutil.rmtree(made / "files")
    with pytest.raises(ConfigError) as caught:
        build_learner(open_run(made), on_metrics=lambda _: None, on_notice=lambda _: None)
    assert caught.value.remedy


def test_truncated_weights_are_refused(made: Path) -> None:
    path = made / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        build_learner(open_run(made), on_metrics=lambda _: None, on_notice=lambda _: None)


def test_warm_start_makes_the_model_of_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_run, "WarmstartConfig", lambda: WarmstartConfig(steps=2))
    stages: list[str] = []
    folder = init_run(tmp_path / "run", PLAN, settings=SETTINGS, on_progress=lambda stage, share: stages.append(stage))
    assert stages
    assert folder.manifest.base_model.startswith("made here")


def test_loss_that_does_not_fit_is_refused_on_opening(made: Path) -> None:
    toml = made / "run.toml"
    toml.write_text(toml.read_text().replace('name = "topr"', 'name = "topr"\nadvantage = "mean_sdt"'))
    with pytest.raises(ConfigError, match=r"loss\.advantage") as caught:
        open_run(made)
    assert "mean_std" in caught.value.remedy


def test_the_target_is_the_one_the_learner_was_started_for(made: Path) -> None:
    folder = open_run(made)
    assert folder.planned_updates() == folder.settings.learner.updates == 200
    folder.record_planned_updates(0)
    assert folder.planned_updates() is None, "0 goes on until stopped"
    folder.record_planned_updates(350)
    assert folder.planned_updates() == 350
    (made / "planned-updates").unlink()
    (made / "run.toml").write_text("[learner\n")
    assert folder.planned_updates() is None, "a half-edited file sets no target"
