"""The owner's orders to a validator: a rest frees the scorer and loses no group, a duty cycle leaves time between."""

from __future__ import annotations

from p2prl.controls.rules import Order
from p2prl.models.groups.group_work import ReplayTools
from p2prl.net.process import control
from p2prl.net.process.run_preparation import RunPreparation
from p2prl.validator.service import Audit, Validator, ValidatorConfig
from tests.unit.learner.small_run import SmallRun
from tests.unit.validator.validator_run import ME, PEER, HandClock, InboxPort, arrived, ready

REST = Order(rests=True, reason="paused by you", keeps_network=False)


class LeavingPort(InboxPort):
    """A network that can be left, and that remembers how long it was waited for."""

    def __init__(self) -> None:
        super().__init__([])
        self.left = 10**9
        self.calls: list[str] = []
        self.waits: list[float] = []

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        self.waits.append(timeout_s)
        return super().poll(timeout_s)

    def suspend(self) -> None:
        self.calls.append("suspend")

    def resume(self) -> None:
        self.calls.append("resume")


class Rig:
    def __init__(self, world: SmallRun) -> None:
        self.world, self.port, self.audits = world, LeavingPort(), list[Audit]()
        for parameter in world.scorer._policy.model.parameters():
            parameter.data = parameter.data.clone()  # a test's weights are mapped from a file, and cannot be freed
        self.validator = Validator(
            identity=ME,
            run=world.run,
            config=ValidatorConfig(rate=1.0),
            clock=HandClock(),
            preparation=RunPreparation(lambda _, __: ReplayTools(world.scorer, world.work), lambda _, __: None),
            on_audit=self.audits.append,
            on_notice=lambda _: None,
        )
        self.validator.owner.attach(self.port)
        self.port.inbox = [control.RunKnown(world.manifest_raw)]
        self.port.inbox += [control.FileReady(file.name, "/nowhere") for file in world.manifest.files]

    def turn(self, order: Order) -> None:
        self.validator.owner.give(order)
        self.validator.turn(self.port, wait_s=0.0)

    def held_bytes(self) -> int:
        model = self.world.scorer._policy.model
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.parameters()}.values())


def test_a_rest_frees_the_scorer_and_groups_wait_for_its_end(world: SmallRun) -> None:
    rig = Rig(world)
    before = rig.held_bytes()
    policy = world.publish(0, step=0)
    groups = [world.group(policy, PEER, slot) for slot in range(3)]
    rig.turn(Order())
    rig.port.inbox = [ready(world, policy), arrived(world, groups[0])]
    rig.turn(Order())
    rig.turn(Order())
    assert len(rig.port.verdicts) == 1
    rig.port.inbox = [arrived(world, group) for group in groups[1:]]
    for _ in range(4):
        rig.turn(REST)
    assert rig.held_bytes() == 0 < before
    assert len(rig.port.verdicts) == 1
    assert rig.audits[-1].resting == "paused by you"
    assert rig.audits[-1].waiting == 2
    rig.turn(Order())
    assert rig.held_bytes() == before
    assert [verdict.passed for verdict in rig.port.verdicts] == [True] * 3
    assert rig.audits[-1].resting == ""
    assert rig.port.calls == ["suspend", "resume"]


def test_a_rest_before_the_first_policy_frees_the_scorer_too(world: SmallRun) -> None:
    rig = Rig(world)
    rig.turn(REST)
    rig.turn(REST)
    assert rig.held_bytes() == 0


def test_a_duty_cycle_rests_between_batches(world: SmallRun) -> None:
    rig = Rig(world)
    policy = world.publish(0, step=0)
    rig.turn(Order())
    rig.port.inbox = [ready(world, policy), arrived(world, world.group(policy, PEER, 0))]
    rig.turn(Order(duty=0.1))
    rig.turn(Order(duty=0.1))
    assert len(rig.port.verdicts) == 1
    rig.port.inbox = [arrived(world, world.group(policy, PEER, 1))]
    turns = 0
    while len(rig.port.verdicts) < 2:
        rig.turn(Order(duty=0.1))
        turns += 1
    assert turns >= 4, "the clock goes on a second with each reading of it"
