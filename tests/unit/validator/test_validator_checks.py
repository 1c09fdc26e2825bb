"""A validator's proofs, the checks of its verdicts, and the groups in dispute that it replays."""

from __future__ import annotations

from p2prl.net.process import control
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.ledger_messages import CheckOutcome, VerdictCheck, VerdictChecks
from tests.unit.learner.small_run import NOW, SmallRun
from tests.unit.validator.validator_run import ME, PEER, arrived, audit, ready


def checks(world: SmallRun, *checks: VerdictCheck) -> control.EnvelopeArrived:
    return control.EnvelopeArrived(seal(world.learner, VerdictChecks(checks), run=world.run, now=NOW))


def test_a_verdict_proves_the_replay_that_the_learner_did_too(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    group = world.group(policy, PEER, 0)
    port, _, _ = audit(world, [ready(world, policy), arrived(world, group)])
    (verdict,), (raw,) = port.verdicts, port.published
    stored = world.sealed(group, PEER)
    (outcome,) = world.check(stored)
    assert outcome.replay is not None
    assert outcome.replay.probes is not None
    assert outcome.replay.probes.agree_with(verdict.probes, ME.public_key, stored.digest)
    assert not outcome.replay.probes.agree_with(verdict.probes, PEER.public_key, stored.digest)
    assert open_envelope(raw, now=None).author == ME.public_key


def test_checks_of_own_verdicts_are_counted(world: SmallRun) -> None:
    mine = [VerdictCheck(ME.public_key, bytes([n]) * 32, outcome, 9) for n, outcome in enumerate((1, 1, 2, 3, 4))]
    other = VerdictCheck(PEER.public_key, bytes(32), 1, 9)
    _, totals, _ = audit(world, [checks(world, *mine, other)])
    assert (totals.checks_agreed, totals.checks_contradicted, totals.checks_failed) == (2, 1, 1)


def test_a_group_in_dispute_is_replayed_though_it_was_not_selected(world: SmallRun) -> None:
    policy = world.publish(0, step=0)
    groups = [arrived(world, world.group(policy, PEER, slot)) for slot in range(3)]
    names = [envelope_digest(message.envelope) for message in groups]
    outcomes = [
        VerdictCheck(PEER.public_key, names[0], int(CheckOutcome.AGREED), 9),
        VerdictCheck(PEER.public_key, names[1], int(CheckOutcome.CONTRADICTED), 9),
        VerdictCheck(PEER.public_key, names[1], int(CheckOutcome.CONTRADICTED), 9),
        VerdictCheck(ME.public_key, names[2], int(CheckOutcome.CONTRADICTED), 9),
        VerdictCheck(PEER.public_key, bytes(32), int(CheckOutcome.CONTRADICTED), 9),
    ]
    port, totals, _ = audit(world, [ready(world, policy), *groups, checks(world, *outcomes)], rate=0.0)
    assert [verdict.group for verdict in port.verdicts] == [names[1]]
    assert (totals.seen, totals.replayed) == (3, 1)
