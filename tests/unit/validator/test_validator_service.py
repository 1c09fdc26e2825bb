"""The validator: the share it audits, its replay queue, and verdicts that name the fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.models.group_work import ReplayTools
from p2prl.net.process import control
from p2prl.net.process.run_bootstrap import RunBootstrap
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.ledger_messages import LedgerHead, Verdict
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.wire_codec import encode
from p2prl.swarm.policies.catalog import PolicyVersion
from p2prl.validator.audit_sampling import is_selected
from p2prl.validator.replay_queue import ReplayQueue
from p2prl.validator.service import Audit, Validator, ValidatorConfig
from tests.unit.learner.small_run import NOW, SmallRun, altered, identity, with_completion

ME, PEER = identity("validator"), identity("volunteer")


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.floats(0, 1))
def test_a_choice_never_changes_and_grows_with_the_rate(group: bytes, secret: bytes, rate: float) -> None:
    name = digest("g", group)
    chosen = is_selected(name, secret, rate)
    assert is_selected(name, secret, rate) is chosen
    assert not is_selected(name, secret, 0.0)
    assert is_selected(name, secret, 1.0)
    if chosen:
        assert is_selected(name, secret, min(1.0, rate + 0.1))


def test_the_selected_share_is_the_rate_and_differs_by_key() -> None:
    names = [digest("g", n.to_bytes(4, "big")) for n in range(4000)]
    mine, yours = ([is_selected(n, secret, 0.25) for n in names] for secret in (b"a" * 32, b"b" * 32))
    for chosen in (mine, yours):
        assert sum(chosen) == pytest.approx(1000, abs=5 * (4000 * 0.25 * 0.75) ** 0.5)
    both = sum(a and b for a, b in zip(mine, yours, strict=True))
    assert both == pytest.approx(250, abs=5 * (4000 / 16) ** 0.5)


def test_the_replay_queue_drops_the_oldest() -> None:
    world_free = [digest("e", bytes([n])) for n in range(6)]
    policies = [digest("p", bytes([n % 2])) for n in range(6)]
    queue = ReplayQueue(max_groups=4)
    opened = []
    for n in range(6):
        raw = seal(PEER, LedgerHead(n, world_free[n], 0, False), run=bytes(32), now=NOW)
        opened.append(open_envelope(raw, now=None))
        queue.add(opened[n], policies[n])
        queue.add(opened[n], policies[n])
    assert len(queue) == 4
    assert queue.policies() == [policies[2], policies[3]]
    assert queue.take(policies[2], 1) == [opened[2]]
    assert queue.take(policies[2], 9) == [opened[4]]
    queue.drop(policies[3])
    assert queue.policies() == []


class InboxPort:
    """A network port that returns its inbox and then stops the validator."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self, inbox: list[control.FromNetwork]) -> None:
        self.inbox = inbox
        self.verdicts: list[Verdict] = []
        self.fetched: list[bytes] = []
        self.left = 6
        self.stop: Any = None

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, control.Publish):
            self.verdicts.append(body_of(open_envelope(message.envelope, now=None), Verdict))
        elif isinstance(message, control.FetchPolicy):
            self.fetched.append(message.digest)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        self.left -= 1
        if not self.left:
            self.stop()
        return messages

    def close(self) -> None:
        pass


class HandClock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        self.time += 1.0
        return self.time


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SmallRun]:
    made = SmallRun(tmp_path)
    yield made
    made.close()


def audit(
    world: SmallRun, messages: list[control.FromNetwork], *, turns: int = 6
) -> tuple[InboxPort, Audit, list[str]]:
    start: list[control.FromNetwork] = [control.RunKnown(world.manifest_raw)]
    start += [control.FileReady(file.name, "/nowhere") for file in world.manifest.files]
    port, audits, notices = InboxPort([*start, *messages]), list[Audit](), list[str]()
    port.left = turns
    validator = Validator(
        identity=ME,
        run=world.run,
        config=ValidatorConfig(rate=1.0),
        clock=HandClock(),
        bootstrap=RunBootstrap(lambda _, __: ReplayTools(world.scorer, world.work), lambda _, __: None),
        on_audit=audits.append,
        on_notice=notices.append,
    )
    port.stop = validator.stop
    validator.run(port)
    return port, audits[-1], notices


def ready(world: SmallRun, policy: PolicyVersion) -> control.VersionReady:
    return control.VersionReady(
        policy.digest, encode(policy.manifest), str(world.blobs.path(policy.manifest.weights.root))
    )


def arrived(world: SmallRun, group: RolloutGroup) -> control.EnvelopeArrived:
    return control.EnvelopeArrived(seal(PEER, group, run=world.run, now=NOW))


def test_verdicts_name_the_fault_of_a_group(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    honest = [world.group(policy, PEER, slot) for slot in range(5)]
    ids = np.frombuffer(honest[1].completions[0].tokens, dtype="<u4").copy()
    ids[0] = (ids[0] + 1) % 10
    groups = [
        honest[0],
        with_completion(honest[1], 0, tokens=ids.tobytes()),
        altered(honest[2], prompt=honest[3].prompt),
        altered(honest[3], version=4),
        with_completion(honest[4], 0, logprobs=bytes(len(honest[4].completions[0].logprobs))),
    ]
    port, totals, notices = audit(world, [ready(world, policy), *(arrived(world, group) for group in groups)])
    reasons = ["", "seed_mismatch", "wrong_prompt", "unknown_policy", "logprob_mismatch"]
    assert [v.reason for v in port.verdicts] == reasons
    assert [v.passed for v in port.verdicts] == [not reason for reason in reasons]
    assert port.verdicts[0].tokens == sum(len(c.tokens) // 4 for c in honest[0].completions)
    assert (totals.seen, totals.replayed, totals.passed, totals.failed) == (5, 5, 1, 4)
    assert len(notices) == 4


def test_missing_weights_are_asked_for_once_and_waited_for_30_s(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    port, totals, _ = audit(world, [arrived(world, group)], turns=6)
    assert port.fetched == [policy.digest]
    assert (totals.waiting, totals.replayed) == (1, 0)
    port, totals, _ = audit(world, [arrived(world, group)], turns=40)
    assert totals.waiting == 0
    assert port.verdicts == []


def test_damaged_weights_give_no_verdict(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    path = world.blobs.path(policy.manifest.weights.root)
    path.write_bytes(path.read_bytes()[:-4])
    port, totals, notices = audit(world, [ready(world, policy), arrived(world, group)])
    assert port.verdicts == []
    assert totals.waiting == 0
    assert len(notices) == 1
    assert "version 0 cannot be used" in notices[0]


def test_leaves_when_the_learner_ends_the_run(world: SmallRun) -> None:
    head = seal(world.learner, LedgerHead(0, bytes(32), 0, True), run=world.run, now=NOW)
    _, totals, _ = audit(world, [control.EnvelopeArrived(head)], turns=1000)
    assert totals.waiting == 0
    assert msgspec.structs.asdict(LedgerHead(0, bytes(32), 0, True))["finished"]


def test_an_outdated_run_end_is_ignored(world: SmallRun) -> None:
    old = seal(world.learner, LedgerHead(0, bytes(32), 0, True), run=world.run, now=NOW)
    newer = seal(world.learner, LedgerHead(1, bytes(32), 1, False), run=world.run, now=NOW + 1)
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    messages: list[control.FromNetwork] = [control.EnvelopeArrived(newer), control.EnvelopeArrived(old)]
    messages += [ready(world, policy), arrived(world, group)]
    port, _, _ = audit(world, messages, turns=6)
    assert port.left == 0, "it stayed until it was told to stop"
