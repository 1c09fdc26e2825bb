"""The volunteer's next action: the state table, and each slot sampled once over all versions, without gaps."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from p2prl.client.next_action import Action, Agent, AgentConfig, Load, LocalPolicy, Sample, Wait
from p2prl.client.slot_numbers import SlotNumbers
from p2prl.protocol.digests import digest
from p2prl.protocol.manifests import PolicyManifest, blob_of

BLOB = blob_of(b"weights", 4096)


def held(version: int) -> LocalPolicy:
    manifest = PolicyManifest(version, version, BLOB, bytes(32), bytes(32) if version else b"", bytes(32), 0)
    return LocalPolicy(manifest, digest("p2prl/test-policy", bytes([version])), f"/blobs/{version}")


def agent(slots: int = 4) -> Agent:
    return Agent(AgentConfig(slots_in_flight=slots, backlog=16))


def act(subject: Agent, *, outstanding: int = 0, learner_in_reach: bool = True, staged: bool = True) -> Action:
    """The next action; the slots it submits are in flight afterwards."""
    action = subject.next_action(
        outstanding=outstanding, learner_in_reach=learner_in_reach, busy=subject.in_flight, room=99, staged=staged
    )
    if isinstance(action, Sample):
        subject.submitted(action.slots)
    return action


def test_standby_completes_what_is_in_flight_and_ends_where_it_began() -> None:
    first, second = held(0), held(1)
    subject = agent()
    subject.policy_ready(first)
    subject.loaded_policy(first)
    assert act(subject) == Sample(first, (0, 1, 2, 3))
    subject.stand_by("standing by")
    assert act(subject) == Sample(first, ())
    subject.completed([0, 1, 2])
    subject.policy_ready(second)
    assert act(subject) == Sample(first, ())
    subject.completed([3])
    assert act(subject) == Wait("standing by")
    subject.stand_by("")
    assert act(subject) == Load(second)
    subject.loaded_policy(second)
    assert act(subject) == Sample(second, (4, 5, 6, 7))


def test_the_state_table() -> None:
    first, second = held(0), held(1)
    subject = Agent(AgentConfig(slots_in_flight=4, backlog=16), SlotNumbers(2, {4}))
    assert isinstance(act(subject), Wait)
    subject.policy_ready(first)
    assert act(subject, outstanding=99) == Load(first)
    subject.loaded_policy(first)
    assert act(subject) == Sample(first, (2, 3, 5, 6))
    assert act(subject) == Sample(first, ())
    subject.completed([3, 5])
    assert act(subject, outstanding=15) == Sample(first, (7, 8))
    subject.completed([2, 6])
    assert act(subject, outstanding=16) == Sample(first, ()), "what is in flight is completed"
    subject.completed([7, 8])
    assert isinstance(act(subject, outstanding=16), Wait)
    assert act(subject, outstanding=16, learner_in_reach=False) == Sample(first, (9, 10, 11, 12))
    subject.policy_ready(second)
    assert act(subject) == Sample(first, ()), "a group declares one policy"
    subject.completed([9, 10, 11, 12])
    assert act(subject) == Load(second)
    subject.policy_lost(second)
    assert act(subject) == Sample(first, (13, 14, 15, 16))
    subject.run_finished(True)
    assert subject.finished
    assert isinstance(act(subject, learner_in_reach=False), Wait)


def test_the_next_policy_may_be_replaced_while_slots_are_completed() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    act(subject)
    subject.policy_ready(held(1))
    assert act(subject, staged=True) == Sample(first, ())
    subject.policy_ready(third := held(2))
    subject.completed([0, 1])
    assert act(subject, staged=False) == Sample(first, ()), "no new slots: the switch has begun"
    subject.completed([2, 3])
    assert act(subject, staged=False) == Load(third)
    subject.policy_lost(third)
    assert act(subject) == Sample(first, (4, 5, 6, 7))


def test_weights_that_the_run_is_past_are_not_sampled() -> None:
    old, new = held(5), held(9)
    subject = agent()
    subject.policy_ready(old)
    subject.loaded_policy(old)

    def at(oldest_step: int) -> Action:
        action = subject.next_action(outstanding=0, learner_in_reach=False, busy=0, room=99, oldest_step=oldest_step)
        if isinstance(action, Sample):
            subject.submitted(action.slots)
        return action

    assert at(5) == Sample(old, (0, 1, 2, 3)), "its groups are just young enough"
    assert at(6) == Sample(old, ()), "what is in flight is completed: slots are used in turn"
    subject.completed([0, 1, 2, 3])
    assert at(6) == Wait("the run is past these weights; waiting for newer ones")
    subject.policy_ready(new)
    assert at(6) == Load(new)
    subject.loaded_policy(new)
    assert at(6) == Sample(new, (4, 5, 6, 7))


def test_slots_follow_the_room() -> None:
    subject = Agent(AgentConfig())
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    none: dict[str, Any] = {"outstanding": 0, "learner_in_reach": True}
    assert subject.next_action(busy=0, room=0, **none) == Sample(first, (0,)), (
        "an empty engine takes one whatever it says"
    )
    subject.submitted([0])
    for _ in range(3):
        subject.decoded(subject.in_flight, tokens=10 ** (2 + subject.in_flight), steps=50, seconds=2.0)
        action = subject.next_action(busy=subject.in_flight, room=9, **none)
        assert isinstance(action, Sample)
        subject.submitted(action.slots)
    assert subject.in_flight == 8
    subject.completed([0, 1, 2, 3])
    assert subject.next_action(busy=4, room=0, **none) == Sample(first, ())
    assert subject.next_action(busy=4, room=3, **none) == Sample(first, (8, 9, 10))


def test_open_groups_with_few_completions_left_make_way() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    act(subject)
    nothing: dict[str, Any] = {"outstanding": 0, "learner_in_reach": True}
    assert subject.next_action(busy=3.5, **nothing) == Sample(first, ())
    assert subject.next_action(busy=3.375, **nothing) == Sample(first, (4,))
    assert subject.next_action(busy=0.5, **nothing) == Sample(first, (4, 5, 6, 7))


def test_slots_are_submitted_in_lots() -> None:
    subject = agent(slots=8)
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    assert act(subject) == Sample(first, tuple(range(8)))
    subject.completed([3])
    assert act(subject) == Sample(first, ())
    subject.completed([5])
    assert act(subject) == Sample(first, (8, 9))


def test_stopping_completes_what_is_in_flight() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    act(subject)
    subject.stop()
    subject.policy_ready(held(1))
    assert (act(subject), subject.done) == (Sample(first, ()), False)
    subject.completed([0, 1, 2, 3])
    assert isinstance(act(subject), Wait)
    assert subject.done


def test_the_end_of_the_run_ends_a_stop() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    act(subject)
    subject.stop()
    subject.run_finished(True)
    assert subject.done, "groups in flight are of no use any more"


def test_a_policy_lost_before_loading_is_waited_for() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.policy_lost(first)
    assert isinstance(act(subject), Wait)


def test_a_policy_that_cannot_be_sampled_is_dropped() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    act(subject)
    subject.policy_lost(first)
    assert subject.in_flight == 0
    assert isinstance(act(subject), Wait)
    subject.policy_ready(second := held(1))
    assert act(subject) == Load(second)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ready"), st.integers(0, 9)),
        st.tuples(st.just("act"), st.integers(0, 30)),
        st.tuples(st.just("act and fail"), st.integers(0, 30)),
        st.tuples(st.just("complete"), st.integers(0, 30)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=80,
)


@given(EVENTS, st.booleans(), st.booleans())
def test_no_slot_is_sampled_twice_or_left_out(events: list[tuple[str, int]], in_reach: bool, staged: bool) -> None:
    subject = agent()
    done: set[int] = set()  # contents of the spool: they survive a restart, and a new version
    flying: set[int] = set()
    loaded = -1
    for what, number in events:
        if what == "ready":
            subject.policy_ready(held(number))
        elif what == "restart":
            lowest = next(slot for slot in range(1000) if slot not in done)
            slots = SlotNumbers(lowest, {slot for slot in done if slot > lowest})
            subject, loaded, flying = Agent(AgentConfig(slots_in_flight=4, backlog=16), slots), -1, set()
        elif what == "complete" and flying:
            slot = sorted(flying)[number % len(flying)]
            flying.remove(slot)
            done.add(slot)
            subject.completed([slot])
            assert subject.lowest_slot == next(slot for slot in range(1000) if slot not in done)
        elif what.startswith("act"):
            action = act(subject, outstanding=number, learner_in_reach=in_reach, staged=staged)
            if isinstance(action, Load) and what == "act":
                assert action.policy.manifest.version > loaded, "it never goes back"
                assert not flying, "a group declares one policy"
                loaded = action.policy.manifest.version
                subject.loaded_policy(action.policy)
            elif isinstance(action, Load):
                subject.policy_lost(action.policy)
            elif isinstance(action, Sample):
                taken = done | flying
                assert action.policy.manifest.version == loaded
                assert not set(action.slots) & taken
                lowest_free = [slot for slot in range(1000) if slot not in taken][: len(action.slots)]
                assert list(action.slots) == lowest_free, "no slot is passed over"
                flying |= set(action.slots)
                assert len(flying) <= 4


def test_slot_numbers_continue_under_the_next_policy() -> None:
    subject, first, second = agent(), held(0), held(1)
    subject.policy_ready(first)
    subject.loaded_policy(first)
    assert act(subject) == Sample(first, (0, 1, 2, 3))
    subject.completed([0, 1, 2, 3])
    subject.policy_ready(second)
    assert act(subject) == Load(second)
    subject.loaded_policy(second)
    assert act(subject) == Sample(second, (4, 5, 6, 7))


def test_slots_lost_with_a_policy_are_sampled_under_the_next() -> None:
    subject, first, second = agent(), held(0), held(1)
    subject.policy_ready(first)
    subject.loaded_policy(first)
    act(subject)
    subject.completed([1])
    subject.policy_lost(first)
    subject.policy_ready(second)
    assert act(subject) == Load(second)
    subject.loaded_policy(second)
    assert act(subject) == Sample(second, (0, 2, 3, 4))


def test_slot_numbers_are_remembered_in_little_room() -> None:
    numbers = SlotNumbers()
    for slot in range(10_000):
        numbers.submitted([slot, slot + 1])
        numbers.done([slot])
    assert (numbers.lowest, numbers.in_flight, len(numbers._done_above)) == (10_000, 1, 0)


def test_sampling_continues_until_the_next_policy_is_staged() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    assert act(subject, staged=False) == Load(first)
    subject.loaded_policy(first)
    subject.policy_ready(second := held(1))
    assert subject.waiting is second
    assert act(subject, staged=False) == Sample(first, (0, 1, 2, 3))
    subject.completed([0, 1, 2, 3])
    assert act(subject, staged=True) == Load(second)


def test_nothing_waits_once_the_newest_is_loaded() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    assert subject.waiting is None


def test_an_emptied_engine_loads_the_last_policy_again() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first)
    subject.policy_ready(second := held(1))
    subject.policy_lost(second)
    subject.emptied()
    assert act(subject) == Load(first)
