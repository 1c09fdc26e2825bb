"""The volunteer's next action: the state table, and no slot sampled twice."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from p2prl.client.agent import Agent, AgentConfig, Load, LocalPolicy, Sample, Wait
from p2prl.protocol.digests import digest
from p2prl.protocol.manifests import PolicyManifest, blob_of

BLOB = blob_of(b"weights", 4096)


def held(version: int) -> LocalPolicy:
    manifest = PolicyManifest(version, version, BLOB, bytes(32), bytes(32) if version else b"", bytes(32), 0)
    return LocalPolicy(manifest, digest("p2prl/test-policy", bytes([version])), f"/blobs/{version}")


def agent() -> Agent:
    return Agent(AgentConfig(slots_per_batch=4, backlog=16))


def test_the_state_table() -> None:
    subject, first, second = agent(), held(0), held(1)
    assert isinstance(subject.next_action(outstanding=0, learner_in_reach=True), Wait)
    subject.policy_ready(first)
    assert subject.next_action(outstanding=99, learner_in_reach=True) == Load(first)
    subject.loaded_policy(first, next_slot=6)
    assert subject.next_action(outstanding=0, learner_in_reach=True) == Sample(first, 6, 4)
    subject.sampled(6, 4, tokens=10, seconds=0.1)
    assert subject.next_action(outstanding=15, learner_in_reach=True) == Sample(first, 10, 4)
    assert isinstance(subject.next_action(outstanding=16, learner_in_reach=True), Wait)
    assert subject.next_action(outstanding=16, learner_in_reach=False) == Sample(first, 10, 4)
    subject.policy_ready(second)
    assert subject.next_action(outstanding=0, learner_in_reach=True) == Load(second)
    subject.policy_lost(second)
    assert subject.next_action(outstanding=0, learner_in_reach=True) == Sample(first, 10, 4)
    subject.run_finished(True)
    assert subject.finished
    assert isinstance(subject.next_action(outstanding=0, learner_in_reach=False), Wait)


def test_a_policy_lost_before_loading_is_waited_for() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.policy_lost(first)
    assert isinstance(subject.next_action(outstanding=0, learner_in_reach=True), Wait)


def test_a_policy_that_cannot_be_sampled_is_dropped() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first, next_slot=0)
    subject.policy_lost(first)
    assert isinstance(subject.next_action(outstanding=0, learner_in_reach=True), Wait)
    subject.policy_ready(second := held(1))
    assert subject.next_action(outstanding=0, learner_in_reach=True) == Load(second)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ready"), st.integers(0, 9)),
        st.tuples(st.just("act"), st.integers(0, 30)),
        st.tuples(st.just("act and fail"), st.integers(0, 30)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


@given(EVENTS, st.booleans())
def test_no_slot_is_sampled_twice_and_no_version_goes_back(events: list[tuple[str, int]], in_reach: bool) -> None:
    subject = agent()
    done: set[tuple[int, int]] = set()  # contents of the spool: they survive a restart
    loaded = -1
    for what, number in events:
        if what == "ready":
            subject.policy_ready(held(number))
        elif what == "restart":
            subject, loaded = agent(), -1
        else:
            action = subject.next_action(outstanding=number, learner_in_reach=in_reach)
            if isinstance(action, Load) and what == "act":
                version = action.policy.manifest.version
                assert version > loaded, "it never goes back"
                loaded = version
                free = next(slot for slot in itertools.count() if (version, slot) not in done)
                subject.loaded_policy(action.policy, next_slot=free)
            elif isinstance(action, Load):
                subject.policy_lost(action.policy)
            elif isinstance(action, Sample) and what == "act":
                slots = {(loaded, slot) for slot in range(action.first, action.first + action.count)}
                assert action.policy.manifest.version == loaded
                assert not slots & done
                assert (loaded, action.first - 1) in done or action.first == 0, "no slot is passed over"
                done |= slots
                subject.sampled(action.first, action.count, tokens=1, seconds=1.0)


def test_sampling_continues_until_the_next_policy_is_staged() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    assert subject.next_action(outstanding=0, learner_in_reach=True, staged=False) == Load(first)
    subject.loaded_policy(first, next_slot=0)
    subject.policy_ready(second := held(1))
    assert subject.waiting is second
    assert subject.next_action(outstanding=0, learner_in_reach=True, staged=False) == Sample(first, 0, 4)
    assert subject.next_action(outstanding=0, learner_in_reach=True, staged=True) == Load(second)


def test_nothing_waits_once_the_newest_is_loaded() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first, next_slot=0)
    assert subject.waiting is None


def test_an_emptied_engine_loads_the_last_policy_again() -> None:
    subject = agent()
    subject.policy_ready(first := held(0))
    subject.loaded_policy(first, next_slot=3)
    subject.policy_ready(second := held(1))
    subject.policy_lost(second)
    subject.emptied()
    assert subject.next_action(outstanding=0, learner_in_reach=True) == Load(first)
