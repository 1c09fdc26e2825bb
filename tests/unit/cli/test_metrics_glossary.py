"""docs/metrics.md names every key that a real update and a real status write, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl.cli.commands.validate_worker import audit_document
from p2prl.cli.commands.worker_session import StatusFile
from p2prl.cli.views.volunteer_view import progress_document
from p2prl.client.progress import Progress
from p2prl.config.worker_folder import claim_worker_folder
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig
from p2prl.learner.intake.dynamic_sampling import DynamicSampling
from p2prl.learner.intake.lost_work import GroupFacts, LostWork
from p2prl.learner.intake.replay_pace import ReplayPace
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.timing.live_forecast import UPDATES, Forecaster
from p2prl.learner.timing.standby import StandbyChoice
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import BUCKETS, LossPipeline, LossPipelineConfig
from p2prl.learner.training.preferences import PreferenceConfig, Preferences
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.training_group import TrainingGroup, rollouts_of
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.learner.update import rewards_by_part
from p2prl.models.groups.group_work import GroupWork, ReplayTools
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol.join_link import JoinLink
from p2prl.validator.service import Audit
from tests.unit.config.test_reward_model_run import Counting
from tests.unit.learner.small_run import SmallRun
from tests.unit.learner.test_standby_learner import FollowedSwarm
from tests.unit.learner.test_trainer import CONFIG, batches
from tests.unit.models.data_run import DataRun

TEXT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def glossary(title: str) -> set[str]:
    """Keys in the first column of a section's table; every row has a meaning."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    keys: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|(.*?)\|(.*)\|$", section, re.MULTILINE):
        assert row[2].strip(), f"{row[0]} has no meaning"
        keys.update(re.findall(r"`([^`]+)`", row[0]))
    return keys


def without_buckets(keys: set[str]) -> set[str]:
    """Keys of the staleness buckets under one name, checking that the glossary lists each bucket."""
    listed = re.findall(r"`([^`]+)`", TEXT.partition("A bucket is one of ")[2].partition(" updates.")[0])
    assert listed == ["all", *BUCKETS]
    for key in keys:
        assert not key.startswith("stale/") or key.split("/")[1] in listed
    return {re.sub(r"^stale/[^/]+/", "stale/BUCKET/", key) for key in keys}


def losses_metrics() -> set[str]:
    (batch,) = batches(1)
    names: set[str] = set()
    for name in set(BUILTIN_LOSSES) - {
        "dr_grpo",
        "luspo",
    }:  # the metrics of grpo and gspo; they have no default for the length
        objective = build_loss(name, options={})
        trainer = make_trainer(tiny_model(seed=2).model, LossPipeline.plain(objective), CONFIG, temperature=1.0)
        names |= set(trainer.update(batch))
    return names


def lost_figures() -> set[str]:
    """Keys of a learner that has lost groups to their age."""
    work = LostWork()
    work.trained(GroupFacts(4.0, 1.0, b"a", 1.0))
    work.lost(GroupFacts(4.0, 1.0, b"a", 1.0))
    return set(work.figures)


def pace_figures() -> set[str]:
    """Keys of a learner whose replays take time, as they do not on virtual time."""
    pace = ReplayPace()
    pace.replayed(1, 1.0)
    return set(pace.figures)


def forecast_figures() -> set[str]:
    """Keys of a learner that has made more than sixteen updates, and then sixteen more, with somebody on standby."""
    forecaster = Forecaster(groups_per_update=2)
    for update in range(2 * UPDATES + 2):
        forecaster.delivered(b"a", update + 0.5)
        forecaster.updated(float(update), at_work=0.5, ready=0)
    choice = StandbyChoice(groups_per_update=2, most=1)
    choice.offered({b"a": 1.0})
    for second in range(8):
        choice.delivered(b"a", float(second))
        choice.delivered(b"b", float(second))
    for update in range(8):
        choice.updated(8.0 + update, waited=0.0, waiting=8)
    return set(forecaster.figures) | set(choice.figures)


def preference_figures(batch: Sequence[TrainingGroup]) -> set[str]:
    """Keys of a run with preferences."""
    pair = replace(
        batch[0],
        completions=batch[0].completions[:2],
        behavior_logprobs=batch[0].behavior_logprobs[:2],
        rewards=np.asarray([1.0, 0.0], dtype=np.float32),
    )
    rollouts = rollouts_of([pair], torch.device("cpu"))
    nowhere: Any = None
    return set(Preferences(nowhere, PreferenceConfig()).loss(rollouts.behavior_logprobs_BGT, rollouts)[1])


def metrics_of_settings() -> set[str]:
    """Keys that only a run with a reference policy, a value head or masks writes, or one that leaves groups out."""
    (batch,) = batches(1)
    pipeline = LossPipeline(
        LossPipelineConfig(
            objective=build_loss("gepo_t"),
            reference=ReferencePenaltyConfig(beta=0.01),
            guards=GuardConfig(mask_truncated=True),
        )
    )
    model = tiny_model(seed=2).model
    values = LossPipeline(LossPipelineConfig(objective=build_loss("ppo"), value=ValueHeadConfig()))
    head = set(make_trainer(tiny_model(seed=2).model, values, CONFIG, temperature=1.0).update(batch))
    head |= set(DynamicSampling(1).figures) | preference_figures(batch)
    return head | set(make_trainer(model, pipeline, CONFIG, temperature=1.0, reference=ReferenceConfig()).update(batch))


def test_every_metric_of_an_update_is_explained(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    world.journal.close()
    config = EvaluationConfig(prompts=2, samples=1)
    swarm = FollowedSwarm(world, tmp_path / "standby", evaluate=config)
    swarm.finish()
    swarm.learner.close()
    world.blobs.close()
    written: set[str] = set()
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        written |= set(json.loads(line))
    (evaluated, *_) = (tmp_path / "evaluations.jsonl").read_text().splitlines()
    result = json.loads(evaluated)
    assert set(result) | set(result["tasks"]["chain4"]) == glossary("evaluations.jsonl") - {"rate", "low", "high"}
    written = {re.sub("^(evaluation|reward)/chain4/", r"\1/TASK/", key) for key in written}
    written |= set(Replayer(ReplayTools(world.scorer, DataRun(world).learner)).figures)
    written |= set(Replayer(ReplayTools(world.scorer, world.work, replayers=2)).figures)
    judged = msgspec.structs.replace(world.manifest, reward="success+orm@" + "ab" * 16)
    codec = TextCodec(world.loaded.tokenizer, world.loaded.model)
    judged_work = GroupWork(judged, world.run, codec, reward_model=Counting())
    written |= set(Replayer(ReplayTools(world.scorer, judged_work)).figures)
    parts = rewards_by_part([("chain4", {"number": 1.0, "length": -0.5})])
    written |= {re.sub("chain4/(number|length)", "TASK/PART", key) for key in parts}
    written |= losses_metrics() | metrics_of_settings() | lost_figures() | forecast_figures() | pace_figures()
    seen = without_buckets(written)
    assert seen == glossary("metrics.jsonl")


def status_keys(home: Path, role: str, document: Mapping[str, object], **kept: object) -> set[str]:
    seat = claim_worker_folder(home)
    link = JoinLink("unit", seat.identity.public_key, ())  # type: ignore[arg-type]
    status = StatusFile(seat, link, role)
    status.keep(**kept)
    status.write(dict(document))
    seat.release()
    return set(json.loads((seat.run_directory(link.run) / "status.json").read_text()))


def test_every_key_of_a_workers_status_is_explained(tmp_path: Path) -> None:
    progress = Progress("", 0, 0, {}, {}, {}, 0, 0.0, 0.0, (-1, 0, 0), 0, 0, 0, 0, 0)
    # What samples is a fact of the worker, known once the engine is loaded.
    keys = status_keys(tmp_path / "a", "volunteer", progress_document(progress), engine={})
    assert keys == glossary("status.json of a volunteer")
    keys = status_keys(tmp_path / "b", "validator", audit_document(Audit(0, 0, 0, 0, 0, 0)))
    assert keys == glossary("status.json of a validator")
