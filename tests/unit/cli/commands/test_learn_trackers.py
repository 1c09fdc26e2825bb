"""Trackers get every number of an update under its own name, and nothing that is not one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from p2prl.cli.commands.learn_trackers import hyperparameters, tracker
from p2prl.config.run_folder import Folder
from p2prl.errors import ConfigError, MachineError
from p2prl_lab.testing.sample_ledgers import manifest

METRICS = {
    "step": 7.0,
    "groups": 16,
    "stale/17-64/ess": 0.25,
    "loss/weight_max": 2.0,
    "staleness": [1, 2],
    "loss_name": "gepo_t",
}
RUN = bytes(range(32))
MANIFEST = manifest(name="unit")
CONFIG = {
    "run": RUN.hex(),
    "group_size": MANIFEST.sampling.group_size,
    "temperature": MANIFEST.sampling.temperature,
    "staleness_bound": MANIFEST.staleness_bound,
    "learner.groups_per_update": 16,
    "learner.optimizer.learning_rate": 2e-4,
    "tags": '["a"]',
}
"""Some of a run's hyperparameters."""

NUMBERS = {"step": 7.0, "groups": 16, "stale/17-64/ess": 0.25, "loss/weight_max": 2.0}


def folder(path: Path) -> Folder:
    table = {
        "learner": {"groups_per_update": 16, "optimizer": {"learning_rate": 2e-4}},
        "network": {"bootstrap": ["/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWother"]},
        "threads": 1,
        "tags": ["a"],
    }
    return cast(Folder, SimpleNamespace(directory=path, run=RUN, manifest=MANIFEST, settings_table=lambda: table))


def test_no_tracker_gets_an_address(tmp_path: Path) -> None:
    config = hyperparameters(folder(tmp_path))
    assert CONFIG.items() <= config.items()
    assert "192.0.2.1" not in json.dumps(config)


class Writer:
    """Stands for tensorboard's, and is its own module."""

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}
        self.steps: set[int] = set()
        self.closed = False
        self.texts: dict[str, str] = {}

    def add_text(self, name: str, text: str) -> None:
        self.texts[name] = text

    def SummaryWriter(self, path: str) -> Writer:  # noqa: N802 - tensorboard's name
        self.path = path
        return self

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars[name] = value
        self.steps.add(step)

    def close(self) -> None:
        self.closed = True


class Trackio:
    """Stands for the module trackio."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def init(self, *, project: str, name: str, config: dict[str, Any], resume: str) -> None:
        self.run, self.config, self.resume = (project, name), config, resume

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished = True


class Wandb:
    """Stands for the module wandb and its run."""

    Error = ConnectionError

    def __init__(self, *, logged_in: bool) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.logged_in = logged_in
        self.finished = False
        self.begun: dict[str, Any] = {}

    def login(self, *, prompt: bool) -> bool:
        assert not prompt, "a learner asks no question"
        return self.logged_in

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802 - wandb's name
        return settings

    def init(self, **begun: Any) -> Wandb:
        self.begun = begun
        return self

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished = True


def installed(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda _: module)


def test_tensorboard_gets_the_numbers_at_their_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writer = Writer()
    installed(monkeypatch, writer)
    with tracker("tensorboard", folder(tmp_path)) as track:
        track(METRICS)
    assert writer.scalars == NUMBERS
    assert (writer.steps, writer.closed, writer.path) == ({7}, True, str(tmp_path / "tensorboard"))
    assert CONFIG.items() <= json.loads(writer.texts["config"].strip("`json\n")).items()


def test_trackio_gets_the_numbers_of_an_update_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = Trackio()
    installed(monkeypatch, module)
    with tracker("trackio", folder(tmp_path)) as track:
        track(METRICS)
    assert (module.logged, module.finished) == ([(7, NUMBERS)], True)
    assert (module.run, module.resume) == (("p2prl", "unit-00010203"), "allow"), "a learner that starts again goes on"
    assert CONFIG.items() <= module.config.items()


@pytest.mark.parametrize(
    ("logged_in", "asked", "mode"),
    [(True, "", "online"), (False, "", "offline"), (True, "offline", "offline"), (False, "online", "online")],
)
def test_wandb_gets_the_numbers_and_nothing_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logged_in: bool, asked: str, mode: str
) -> None:
    monkeypatch.setenv("WANDB_MODE", asked)
    module = Wandb(logged_in=logged_in)
    installed(monkeypatch, module)
    with tracker("wandb", folder(tmp_path)) as track:
        track(METRICS)
    assert (module.logged, module.finished) == ([(7, NUMBERS)], True)
    begun = module.begun
    assert CONFIG.items() <= begun["config"].items()
    assert (begun["mode"], begun["dir"], begun["name"]) == (mode, str(tmp_path), "unit")
    assert (begun["id"], begun["resume"]) == (RUN.hex()[:32], "allow"), "a learner that starts again goes on"
    kept_back = {name: begun["settings"][name] for name in ("disable_git", "x_disable_meta", "x_disable_machine_info")}
    assert all(kept_back.values())
    assert not begun["settings"]["save_code"]
    assert begun["settings"]["console"] == "off"


def test_a_wandb_that_cannot_be_reached_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Unreachable(Wandb):
        def init(self, **begun: Any) -> Wandb:
            raise ConnectionError("no network")

    installed(monkeypatch, Unreachable(logged_in=True))
    with pytest.raises(MachineError, match="no network") as caught, tracker("wandb", folder(tmp_path)):
        pass
    assert "WANDB_MODE=offline" in caught.value.remedy


def test_none_takes_everything_and_another_name_is_refused(tmp_path: Path) -> None:
    with tracker("none", folder(tmp_path)) as track:
        track(METRICS)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="mlflow") as caught, tracker("mlflow", folder(tmp_path)):
        pass
    assert "trackio" in caught.value.remedy


@pytest.mark.parametrize(("name", "extra"), [("trackio", "track"), ("tensorboard", "track"), ("wandb", "wandb")])
def test_a_missing_tracker_has_an_install_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, extra: str
) -> None:
    def missing(_: str) -> Any:
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=f"{name} is not installed") as caught, tracker(name, folder(tmp_path)):
        pass
    assert f"-c constraints.txt '.[{extra}]'" in caught.value.remedy
