"""A reward model of a run folder: copied by `init`, under the manifest's digest, with the learner alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from p2prl.cli.commands.init_options import InitOptions
from p2prl.cli.commands.init_plan import run_plan
from p2prl.config.learner_memory import plan_learner_memory
from p2prl.config.new_run import RunFolder, init_run, open_run, run_file_blobs
from p2prl.config.reward_model_files import REWARD_MODEL_FOLDER, open_reward_model
from p2prl.config.roles import build_learner
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.rewards.reward_model_folder import reward_model_digest, reward_model_files
from p2prl.models.rewards.run_reward import RunReward
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.tasks.process_scorer import Judgement
from tests.unit.learner.small_run import SmallRun, identity
from tests.unit.models.data_run import DataRun
from tests.unit.models.rewards.classifiers import classifier

CPU = torch.device("cpu")
ME = identity("volunteer")
NAMED = "@" + "ab" * 16


class Counting:
    """A judge whose score is the length of a completion, and of steps their places; it keeps what it read."""

    def __init__(self) -> None:
        self.read: list[tuple[str, str, str]] = []
        self.cut = 0

    def judge(self, prompt: str, completion: str, *, ending: str, step_ends: Any) -> Judgement:
        self.read.append((prompt, completion, ending))
        if step_ends is None:
            return Judgement(outcome=float(len(completion)))
        return Judgement(steps=tuple(1 / (2 + end) for end in step_ends), ends=tuple(step_ends))


def options(tmp_path: Path, **changes: Any) -> InitOptions:
    """Options of a run of the small model, whose warm start is left out."""
    plain: dict[str, Any] = {"name": "run", "root": tmp_path, "reward_model": str(tmp_path / "judge")}
    return InitOptions(**plain | changes)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("orm", "success", "success+orm"),
        ("prm", "success", "success+prm:clip+delta"),
        ("prm", "2*success+0.2*prm", "2*success+0.2*prm"),
        ("orm", "0.5*orm+success", "0.5*orm+success"),
    ],
)
def test_the_reward_names_the_model(tmp_path: Path, kind: str, given: str, expected: str) -> None:
    classifier(tmp_path / "judge", kind)
    plan, _ = run_plan(options(tmp_path, reward=given))
    assert plan.reward == f"{expected}@{reward_model_digest(tmp_path / 'judge')}"


def make(tmp_path: Path, reward: str, *, judged: bool) -> None:
    plan, settings = run_plan(options(tmp_path, reward=reward, **({} if judged else {"reward_model": ""})))
    init_run(tmp_path / "run", plan, settings=settings, on_progress=lambda *_: None)


@pytest.mark.parametrize(
    ("reward", "judged", "cause"),
    [
        ("success+prm:clip", True, "which scores whole completions"),
        ("success+orm+prm", True, "which scores whole completions"),
        ("success+process+orm", True, "is not valid"),
        ("success+orm", False, "there is no other part|is not valid"),
        ("success" + NAMED, False, "there is no other part"),
    ],
)
def test_rewards_that_do_not_fit_the_model_are_refused(tmp_path: Path, reward: str, judged: bool, cause: str) -> None:
    classifier(tmp_path / "judge", "orm")
    with pytest.raises(ConfigError, match=cause):
        make(tmp_path, reward, judged=judged)
    assert not (tmp_path / "run").exists()


def test_tasks_of_several_turns_have_no_reward_model() -> None:
    with pytest.raises(ConfigError, match="answers of one turn, and those of guess"):
        RunReward("success+orm" + NAMED, ["guess"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list[str]]:
    """A run with an ORM, and what was told."""
    folder = tmp_path_factory.mktemp("judged")
    classifier(folder / "judge", "orm")
    base = SmallRun(folder / "small")
    base.loaded.model.save_pretrained(folder / "model")
    base.loaded.tokenizer.save_pretrained(folder / "model")
    base.close()
    plan, settings = run_plan(options(folder, model=str(folder / "model"), reward="success+0.5*orm"))
    told: list[str] = []
    made = init_run(folder / "run", plan, settings=settings, on_progress=lambda *_: None, on_notice=told.append)
    return made, told


def test_the_folder_has_the_files_and_volunteers_get_none(run: tuple[RunFolder, list[str]]) -> None:
    folder, told = run
    place = folder.directory / REWARD_MODEL_FOLDER
    assert sorted(path.name for path in place.iterdir()) == reward_model_files(folder.directory.parent / "judge")
    assert folder.manifest.reward == f"success+0.5*orm@{reward_model_digest(place)}"
    assert any("stays with the learner" in each for each in told)
    contents = [content for _, content in run_file_blobs(folder)]
    assert (place / "model.safetensors").read_bytes() not in contents
    assert not folder.manifest.data_sets


def test_memory_counts_it(run: tuple[RunFolder, list[str]]) -> None:
    folder, _ = run
    told: list[str] = []
    plan = plan_learner_memory(folder, CPU, told.append)
    model = open_reward_model(folder, CPU, told.append)
    assert model is not None
    assert plan.needs is not None
    assert plan.needs.reward_model == sum(4 * each.numel() for each in model._model.parameters())
    assert "reward model " in told[0]
    assert "scores whole completions (orm)" in told[1]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_changed_or_missing_model_is_refused(run: tuple[RunFolder, list[str]], name: str) -> None:
    folder, _ = run
    path = folder.directory / REWARD_MODEL_FOLDER / name
    before = path.read_bytes()
    path.write_bytes(before + b"\n")
    try:
        with pytest.raises(ConfigError, match="was changed: its digest begins with") as caught:
            open_reward_model(folder, CPU, lambda _: None)
        assert "another run" in caught.value.remedy
        path.unlink()
        with pytest.raises(ConfigError, match=r"is missing|cannot be read"):
            build_learner(open_run(folder.directory), on_metrics=lambda _: None, on_notice=lambda _: None)
    finally:
        path.write_bytes(before)
    build_learner(open_run(folder.directory), on_metrics=lambda _: None, on_notice=lambda _: None).close()


def work_of(small_run: SmallRun, reward: str, judge: Counting | None) -> GroupWork:
    manifest = msgspec.structs.replace(small_run.manifest, reward=reward)
    return GroupWork(
        manifest,
        small_run.run,
        TextCodec(small_run.loaded.tokenizer, small_run.loaded.model),
        reward_model=judge,
    )


def test_the_learner_alone_scores_and_a_volunteer_claims_nothing(tmp_path: Path) -> None:
    small_run = SmallRun(tmp_path)
    policy = small_run.publish(0, step=0)
    judge = Counting()
    learner, volunteer = (work_of(small_run, "success+0.5*orm" + NAMED, each) for each in (judge, None))
    small_run.work = volunteer
    group = small_run.group(policy, ME, 3)
    assert [each.reward for each in group.completions] == [0.0, 0.0]
    seen = learner.inspect(group, peer=ME.public_key, beacon=policy.manifest.beacon)
    assert learner.scores(seen.assignment)
    assert not volunteer.scores(seen.assignment)
    success = learner.successes(seen.assignment, seen.token_ids)
    codec = TextCodec(small_run.loaded.tokenizer, small_run.loaded.model)
    texts = [codec.decode([token for token in ids if token not in codec.stop_ids]) for ids in seen.token_ids]
    found = learner.start_rewards(seen.assignment, seen.token_ids)()
    assert found.values == tuple(a + 0.5 * len(b) for a, b in zip(success, texts, strict=True))
    assert found.parts == tuple({"success": a, "orm": 0.5 * len(b)} for a, b in zip(success, texts, strict=True))
    ended = ["<e>" if ids[-1] in codec.stop_ids else "" for ids in seen.token_ids]
    assert judge.read == [(seen.assignment.prompt, a, b) for a, b in zip(texts, ended, strict=True)]
    assert volunteer.successes(seen.assignment, seen.token_ids) == success, "evaluations need no reward model"
    small_run.close()


def test_steps_of_a_task_are_those_of_its_grammar(tmp_path: Path) -> None:
    small_run = SmallRun(tmp_path)
    judge = Counting()
    work = work_of(small_run, "success+prm" + NAMED, judge)
    codec = TextCodec(small_run.loaded.tokenizer, small_run.loaded.model)
    assignment = work.assign(beacon=bytes(32), peer=ME.public_key, slot=3)
    ids = [codec.encode(text, rendered=True) for text in ("747#7", "z7")]
    found = work.start_rewards(assignment, ids)()
    assert found.steps[0].ends == (0, 1, 2, 4)
    assert [part["prm"] for part in found.parts] == pytest.approx([1 / 2 + 1 / 3 + 1 / 4 + 1 / 6, 0.0])
    tokens = work.step_rewards(ids, found)
    assert np.nan_to_num(tokens[0]).tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 4, 0.0, 1 / 6])
    small_run.close()


def test_rows_of_data_are_judged_beside_their_scorers(tmp_path: Path) -> None:
    small_run = SmallRun(tmp_path)
    judge = Counting()
    data = DataRun(small_run, share=1e6, reward="2*success+0.5*orm" + NAMED)
    learner = GroupWork(data.manifest, small_run.run, data.codec, data.learner._data, data.scorer, judge)
    assignment = learner.assign(beacon=bytes(32), peer=ME.public_key, slot=0)
    assert assignment.row is not None
    assert learner.scores(assignment)
    assert not data.learner.scores(assignment), "a machine with the rows and without the model"
    right = str(SMALL[assignment.row])
    stop = min(data.codec.stop_ids)
    ids = [[*data.codec.encode(text, rendered=True), stop] for text in (right, right + right)]
    found = learner.start_rewards(assignment, ids)()
    assert found.values == (2.5, 1.0)
    assert [part["orm"] for part in found.parts] == [0.5, 1.0]
    assert found.if_failed == (0.5, 1.0)
    assert [prompt.startswith("<b>") for prompt, _, _ in judge.read] == [True, True], "as the policy read it"
    small_run.close()


SMALL = [(a + b) % 10 for a in range(1, 6) for b in range(2, 5)]
"""Answers of the rows of `DataRun`."""


def test_plans_refuse_half_of_a_model(tmp_path: Path) -> None:
    plain = {"name": "r", "goal": "g", "task": "chain4", "model": None}
    with pytest.raises(ConfigError, match="no other part of one"):
        RunPlan(**plain, reward="success+orm" + NAMED)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no other part of one"):
        RunPlan(**plain, reward="success", reward_model=tmp_path)  # type: ignore[arg-type]
