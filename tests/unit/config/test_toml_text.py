"""Changes of a run.toml's text: what is read afterwards is the change, and every comment is still there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.config.new_run import RunFolder, init_run
from p2prl.config.presets import PRESETS
from p2prl.config.toml_tables import with_changes
from p2prl.config.toml_text import changed_text
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model

KEYS = (
    "device",
    "threads",
    "learner.updates",
    "learner.publish",
    "learner.dynamic_sampling",
    "learner.optimizer.learning_rate",
    "learner.optimizer.schedule",
    "learner.memory.precision",
    "loss.name",
    "loss.guards.mask_truncated",
    "evaluation.every",
    "network.listen",
)
VALUES = ("4", "-1.5e-7", "true", "false", "cosine", '"a \\" b"', "[1, 2]", '["x"]', "two words", "{a = 1}", "'#'", "é")


@given(
    st.sampled_from(sorted(PRESETS)),
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)).map("=".join), max_size=5),
)
def test_what_is_read_is_the_change_and_comments_stay(preset: str, changes: list[str]) -> None:
    text = PRESETS[preset].settings_text()
    changed = changed_text(text, changes)
    assert tomllib.loads(changed) == with_changes(tomllib.loads(text), changes)
    named = {change.partition("=")[0].split(".")[-1] for change in changes}
    for line in text.splitlines():
        assert line.split(" = ")[0] in named or line in changed.splitlines()


def test_a_setting_is_changed_in_its_place() -> None:
    text = "threads = 1\n\n[learner]\nupdates = 5  # some\n[loss]\nname = 'topr'\n"
    assert changed_text(text, ["learner.updates=9", "loss.advantage=mean", "device=cuda:1", "evaluation.every=2"]) == (
        'device = "cuda:1"\nthreads = 1\n\n[learner]\nupdates = 9\n[loss]\nadvantage = "mean"\nname = \'topr\'\n'
        "\n[evaluation]\nevery = 2\n"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("threads", "not KEY=VALUE"),
        ("learner.updates.each=4", "is no table"),
        ("loss.options.cap=4", "does not fit"),
        ("learner.dates=1970-01-01", "does not fit"),
    ],
)
def test_changes_that_fit_nowhere_are_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        changed_text(PRESETS["chain4"].settings_text(), [change])


def test_settings_of_a_new_run_come_after_what_fits_its_model_and_before_the_model_is_made(tmp_path: Path) -> None:
    text = PRESETS["chain4"].settings_text()
    stages: list[str] = []
    made = tiny_model(seed=3)
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")

    def make(name: str, changes: list[str]) -> RunFolder:
        plan = RunPlan(name=name, goal="test", task="chain4", model=str(tmp_path / "model"))
        return init_run(
            tmp_path / name,
            plan,
            settings=text,
            fit_settings=True,
            changes=changes,
            on_progress=lambda stage, _: stages.append(stage),
        )

    with pytest.raises(ConfigError, match="unknown key 'learning_rat'"):
        make("wrong", ["learner.optimizer.learning_rat=3e-4"])
    with pytest.raises(ConfigError, match=r"learner.dynamic_sampling has no meaning"):
        make("wrong", ["learner.dynamic_sampling=2", "loss.advantage=none"])
    assert (stages, [path.name for path in tmp_path.iterdir()]) == ([], ["model"])

    settings = make("right", ["learner.optimizer.learning_rate=3e-4", "evaluation.every=4"]).settings
    assert (settings.learner.optimizer.learning_rate, settings.evaluation.every) == (3e-4, 4)
    assert settings.learner.optimizer.warmup_updates == 10
