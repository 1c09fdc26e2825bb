"""Groups that only another class of engines explains: no credit, no blame, and evidence of their pair's noise."""

from __future__ import annotations

import numpy as np

from p2prl.learner.intake.admission import Admission, DecodedGroups
from p2prl.learner.intake.group_checks import GroupChecks
from p2prl.learner.intake.owners import Owners
from p2prl.learner.intake.peer_standings import PeerStandings
from p2prl.learner.intake.replay_backlog import BacklogConfig, ReplayBacklog, WaitingGroup
from p2prl.learner.intake.replaying import Replayer
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.settlement import Settlement
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.learner.intake.verdict_checks import VerdictIntake
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.timing.stages import InlineStage
from p2prl.models.groups.group_work import ReplayTools
from p2prl.models.replay.group_replay import replay_groups
from p2prl.models.replay_statistics.baselines import KeptBaselines, Pair
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.standing import Rank
from tests.unit.learner.publishing_rig import HandClock, RecordingPort
from tests.unit.learner.small_run import STALENESS, SmallRun, identity, with_completion

NOISY, CHEAT, HONEST = identity("noisy"), identity("cheat"), identity("honest")


def shifted(group: RolloutGroup, by: float) -> RolloutGroup:
    for index, completion in enumerate(group.completions):
        claimed = np.frombuffer(completion.logprobs, dtype="<f2").astype(np.float32) - by
        group = with_completion(group, index, logprobs=claimed.astype("<f2").tobytes())
    return group


def waiting(group: StoredGroup) -> WaitingGroup:
    return WaitingGroup(group.digest, group.peer, group.version, len(group.raw))


def test_a_noisy_machine_is_not_put_behind_as_a_cheat_is(small_run: SmallRun) -> None:
    policy = small_run.publish(0, step=0)
    path = small_run.directory / "noise.json"
    tools = ReplayTools(small_run.scorer, small_run.work, KeptBaselines(path))
    clock = HandClock()
    standings = PeerStandings(clock)
    config = BacklogConfig(batch_groups=8, surplus_share=0.0, newest_first=True)
    backlog = ReplayBacklog(config, rank=standings.rank)
    sender = SigningSender(small_run.learner, small_run.run, small_run.journal, clock)
    sender.attach(RecordingPort())
    buffer = RolloutBuffer(staleness_bound=STALENESS, ready_target=8)
    checks = GroupChecks(
        journal=small_run.journal,
        backlog=backlog,
        buffer=buffer,
        admission=Admission(small_run.storage, DecodedGroups()),
        replayer=Replayer(tools),
        settlement=Settlement(
            storage=small_run.storage, buffer=buffer, prices=SlotPrices(small_run.journal, secret=bytes(32)),
            owners=Owners(small_run.journal, clock), sender=sender, clock=clock,
            verdicts=VerdictIntake(small_run.journal, sender, clock), baselines=tools.baselines,
            on_verified=lambda peer, version, _trains: None,
        ),
        standings=standings,
        stage=InlineStage(),
    )  # fmt: skip
    first = [
        small_run.sealed(shifted(small_run.group(policy, CHEAT, 0), 20.0), CHEAT),
        small_run.sealed(shifted(small_run.group(policy, NOISY, 0), 0.035), NOISY),
        small_run.sealed(small_run.group(policy, HONEST, 0), HONEST),
    ]
    small_run.store(*first)
    for group in first:
        backlog.add(waiting(group))
    assert checks.settle_next(step=0)
    assert small_run.journal.groups.counts() == {"rejected": 2, "verified": 1}
    assert standings.rank(CHEAT.public_key) is Rank.DISTRUSTED
    assert standings.rank(NOISY.public_key) is standings.rank(HONEST.public_key) is Rank.NEWCOMER
    checks.close()
    kept = KeptBaselines(path)
    assert kept.records == tools.baselines.records == 3


def test_replay_reads_the_measured_noise_of_the_groups_pair(small_run: SmallRun) -> None:
    """Once for each class in a batch; a float32 pair never gets a band that would pay for bfloat16's noise."""
    policy = small_run.publish(0, step=0)
    groups = [small_run.group(policy, HONEST, slot) for slot in (0, 1)]
    groups.append(shifted(small_run.group(policy, HONEST, 2), 0.2))
    work = [
        (group, small_run.work.inspect(group, peer=HONEST.public_key, beacon=policy.manifest.beacon))
        for group in groups
    ]
    asked: list[Pair] = []

    def measured(pair: Pair) -> float:
        asked.append(pair)
        return 5.0

    replays = replay_groups(small_run.scorer, work, run_dtype="float32", measured=measured)
    assert asked == [(groups[0].engine, small_run.scorer.engine_class)]
    assert [replay.pair for replay in replays] == asked * 3
    assert [replay.reason for replay in replays] == ["", "", RejectionReason.ENGINE_MISMATCH]
    assert replays[0].evidence.tokens == replays[0].tokens
