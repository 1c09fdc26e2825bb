"""Data tasks in a run: each row once a pass on every peer, no score on a volunteer, scores only after a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2prl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from p2prl.learner.intake.replaying import Replayer
from p2prl.models.evaluation.mean_reward import evaluate
from p2prl.models.groups.group_work import GroupWork, ReplayTools, SlotAssignment
from p2prl.models.sampling import sample_all
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.tasks.scorers.length_penalty import LengthPenalty
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from tests.unit.learner.small_run import SmallRun, altered, identity
from tests.unit.models.data_run import HELD_OUT, SUMS, DataRun, data_set

ME, OTHER = identity("volunteer"), identity("other")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[DataRun]:
    world = SmallRun(tmp_path)
    yield DataRun(world)
    world.close()


def assigned(work: GroupWork, slot: int, *, peer: bytes = ME.public_key, held_out: bool = False) -> SlotAssignment:
    return work.assign(beacon=bytes(32), peer=peer, slot=slot, held_out=held_out)


def test_rows_come_once_a_pass_and_everyone_agrees(run: DataRun) -> None:
    rows: list[int] = []
    for slot in range(120):
        mine, theirs = assigned(run.volunteer, slot), assigned(run.learner, slot)
        assert mine == theirs
        if mine.task == "chain4":
            assert (mine.row, mine.prompt_ids) == (None, run.codec.encode(mine.prompt))
        else:
            assert mine.row is not None
            assert (mine.prompt, mine.prompt_ids) == ("", run.codec.encode(SUMS[mine.row]["prompt"]))
            rows.append(mine.row)
    assert len(rows) == 60
    for start in range(0, 60, len(SUMS)):
        assert sorted(rows[start : start + len(SUMS)]) == list(range(len(SUMS)))
    assert rows != [assigned(run.learner, slot, peer=OTHER.public_key).row for slot in range(120)][: len(rows)]


def test_seeds_differ_between_passes_over_a_row(run: DataRun) -> None:
    seeds = Counter(request.seed for slot in range(120) for request in assigned(run.volunteer, slot).requests)
    assert set(seeds.values()) == {1}


def test_prompt_frame_stands_around_procedural_prompts_alone(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    run = DataRun(world, prompt_frame=("12", "3"))
    for slot in range(8):
        work = assigned(run.volunteer, slot)
        if work.row is None:  # a rendered text has its special tokens already
            assert work.prompt_ids == run.codec.encode(f"12{work.prompt}3", rendered=True)
        else:
            assert work.prompt_ids == run.codec.encode(SUMS[work.row]["prompt"])
    world.close()


def honest_group(run: DataRun, slot: int, version: int) -> RolloutGroup:
    """A volunteer's group of a slot."""
    policy = run.world.published.at(version)
    assert policy is not None
    run.world.scorer.load_weights(run.world.published.weights(version).open())
    work = run.volunteer.assign(beacon=policy.manifest.beacon, peer=ME.public_key, slot=slot)
    made = sample_all(run.world.sampler, work.requests)
    engine = run.world.sampler.engine_class
    return run.volunteer.pack(work, made, version=version, policy=policy.digest, engine=engine, seconds=0.5)


def data_slot(run: DataRun) -> int:
    return next(slot for slot in range(8) if assigned(run.volunteer, slot).task == "sums")


def test_only_a_replayed_group_is_scored_and_its_author_pays(run: DataRun) -> None:
    run.world.publish(0, step=0)
    run.world.work = run.learner
    group = honest_group(run, data_slot(run), 0)
    assert {completion.reward for completion in group.completions} == {0.0}
    changed = msgspec.structs.replace(
        group.completions[0], tokens=_other_tokens(group.completions[0].tokens), finished=False
    )
    forged = altered(group, completions=(changed, *group.completions[1:]))
    fake, good = run.world.sealed(forged, ME), run.world.sealed(group, ME)
    run.world.store(fake, good)
    refused, kept = run.world.check(fake)[0], run.world.check(good)[0]
    assert refused.state is ReceiptState.REJECTED
    assert kept.state is ReceiptState.VERIFIED
    ((task, row, account),) = run.scorer.calls
    assert (task, account) == ("sums", ME.public_key)
    answers = [run.codec.decode(np.frombuffer(c.tokens, "<u4").tolist()[:-1]) for c in group.completions]
    expected = tuple(
        float(c.finished and text == row["answer"]) for c, text in zip(group.completions, answers, strict=True)
    )
    assert kept.rewards == expected


def _other_tokens(tokens: bytes) -> bytes:
    ids = np.frombuffer(tokens, "<u4").copy()
    ids[0] = 3 if ids[0] != 3 else 4
    return bytes(ids[:1].tobytes()) + tokens[4:]


def test_a_volunteer_has_nothing_to_score_with(run: DataRun) -> None:
    work = assigned(run.volunteer, data_slot(run))
    assert not run.volunteer.scores_data
    assert run.learner.scores_data
    with pytest.raises(LocalProtocolError, match="no answers of sums"):
        run.volunteer.rewards(work, [[1]])


def test_reward_weighs_the_scorers(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    run = DataRun(world, reward="0.5*success")
    work = assigned(run.learner, data_slot(run))
    assert work.row is not None
    stop = min(work.requests[0].stop_ids)
    (answer,) = run.codec.encode(SUMS[work.row]["answer"], rendered=True)
    assert run.learner.rewards(work, [[answer, stop], [answer], [stop]]) == (0.5, 0.0, 0.0)
    assert run.learner.successes(work, [[answer, stop]]) == (1.0,)
    world.close()


def test_length_penalty_is_added_to_rewards_and_not_to_successes(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    penalty = LengthPenalty(max_tokens=4, cache_tokens=2, weight=0.5)
    spec = scoring_spec(Scoring(rewards=(Reward(scorer="exact"),), length_penalty=penalty))
    run = DataRun(world, data_sets=(data_set("sums", scoring=spec),), reward="2*success")
    work = assigned(run.learner, data_slot(run))
    assert work.row is not None
    stop = min(work.requests[0].stop_ids)
    (answer,) = run.codec.encode(SUMS[work.row]["answer"], rendered=True)
    completions = [[answer, stop], [answer, answer, stop], [answer] * 4, [answer] * 9]
    assert run.learner.rewards(work, completions) == (2.0, -0.5, -1.0, -1.0)
    assert run.learner.successes(work, completions) == (1.0, 0.0, 0.0, 0.0)
    world.close()


def test_reward_that_judges_steps_is_refused(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    with pytest.raises(ConfigError, match="nothing judges those of sums"):
        DataRun(world, reward="success+process")
    world.close()


def test_data_of_another_run_is_refused(run: DataRun) -> None:
    with pytest.raises(LocalProtocolError, match="data tasks"):
        GroupWork(run.manifest, run.world.run, run.codec)


def score_groups(run: DataRun, count: int, accounts: list[bytes]) -> None:
    """Rewards of groups whose authors take turns."""
    work = assigned(run.learner, data_slot(run))
    for number in range(count):
        run.learner.rewards(work, [[1], [2]], account=accounts[number % len(accounts)])


@pytest.mark.parametrize("failure", ["error: ValueError: no", "value: a value of type str"])
def test_scorer_that_always_fails_stops_the_run(run: DataRun, failure: str) -> None:
    run.scorer.broken = failure
    score_groups(run, 63, [b"a", b"b", b"c"])
    assert run.learner.scorer_failures == 126
    with pytest.raises(ConfigError, match="scorer of sums failed on every answer of the first 64 groups: ") as caught:
        score_groups(run, 1, [b"a"])
    told = failure.partition(": ")[2]
    assert f" groups: {'it returned ' if failure.startswith('value') else ''}{told}" in str(caught.value)
    assert "new run" in caught.value.remedy


@pytest.mark.parametrize(
    ("failure", "accounts"),
    [
        ("error: boom", [b"a", b"b"]),
        ("error: boom", [b"a", b"b", b""]),
        ("timeout", [b"a", b"b", b"c"]),
        ("memory", [b"a", b"b", b"c"]),
        ("ended", [b"a", b"b", b"c"]),
        ("too long", [b"a", b"b", b"c"]),
        ("row", [b"a", b"b", b"c"]),
    ],
)
def test_authors_and_slow_answers_alone_stop_no_run(run: DataRun, failure: str, accounts: list[bytes]) -> None:
    run.scorer.broken = failure
    score_groups(run, 300, accounts)
    assert run.learner.scorer_failures == 600


def test_evaluations_stop_no_run(run: DataRun) -> None:
    """Their groups are not counted, so that the authors' 63 stay 63."""
    run.scorer.broken = "error: boom"
    score_groups(run, 63, [b"a", b"b", b"c"])
    work = assigned(run.learner, data_slot(run))
    for _ in range(100):
        run.learner.successes(work, [[1]])
    with pytest.raises(ConfigError):
        score_groups(run, 1, [b"b"])


def test_scorer_that_once_worked_may_fail(run: DataRun) -> None:
    work = assigned(run.learner, data_slot(run))
    run.learner.rewards(work, [[1]])
    run.scorer.broken = "error: boom"
    score_groups(run, 200, [b"a", b"b", b"c"])
    assert run.learner.scorer_failures == 400


def test_groups_of_a_batch_are_submitted_before_one_is_waited_for(run: DataRun) -> None:
    """Or a group of answers that hang would hold up everybody behind it."""
    run.world.publish(0, step=0)
    run.world.work = run.learner
    slots = [slot for slot in range(12) if assigned(run.volunteer, slot).task == "sums"][:3]
    outcomes = run.world.check(*(run.world.sealed(honest_group(run, slot, 0), ME) for slot in slots))
    assert [outcome.state for outcome in outcomes] == [ReceiptState.VERIFIED] * 3
    assert [len(outcome.rewards) for outcome in outcomes] == [run.manifest.sampling.group_size] * 3
    assert run.scorer.gathered == [3, 3, 3]


def test_rewards_say_what_failures_would_make_of_them(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    penalty = LengthPenalty(max_tokens=4, cache_tokens=2, weight=0.5)
    spec = scoring_spec(Scoring(rewards=(Reward(scorer="exact"),), length_penalty=penalty))
    run = DataRun(world, data_sets=(data_set("sums", scoring=spec),), reward="2*success")
    work = assigned(run.learner, data_slot(run))
    assert work.row is not None
    (answer,) = run.codec.encode(SUMS[work.row]["answer"], rendered=True)
    completions = [[answer, min(work.requests[0].stop_ids)], [answer] * 9]
    rewards = run.learner.start_rewards(work, completions, account=b"a")()
    assert (rewards.values, rewards.if_failed, rewards.failures) == ((2.0, -1.0), (0.0, -1.0), ())
    run.scorer.broken = "timeout"
    failed = run.learner.start_rewards(work, completions, account=b"a")()
    assert (failed.values, failed.failures) == (rewards.if_failed, ("timeout", "timeout"))
    assert failed.depends_on_machine
    assert not rewards.depends_on_machine
    world.close()


def test_metrics_count_failures_only_in_a_run_with_data(run: DataRun) -> None:
    assert Replayer(ReplayTools(run.world.scorer, run.learner)).figures == {"scorer_failures": 0}
    assert Replayer(ReplayTools(run.world.scorer, run.world.work)).figures == {}


def test_evaluation_reads_held_out_rows(run: DataRun) -> None:
    work = [assigned(run.learner, slot, held_out=True) for slot in range(16)]
    rows = [each.row for each in work if each.held_out]
    assert sorted(set(rows[:4])) == list(range(4))  # type: ignore[type-var]
    assert all(each.prompt_ids == run.codec.encode(HELD_OUT[each.row]["prompt"]) for each in work if each.held_out)  # type: ignore[index]
    assert run.learner.held_out_rows("sums") == 4
    assert run.learner.held_out_rows("chain4") == run.volunteer.held_out_rows("sums") == 0
    run.world.publish(0, step=0)
    run.world.scorer.load_weights(run.world.published.weights(0).open())
    result = evaluate(run.world.sampler, run.learner, prompts=16, seed=3)
    assert result.prompts == 16
    assert {row["prompt"] for _, row, _ in run.scorer.calls} == {row["prompt"] for row in HELD_OUT}


def test_row_is_assigned_by_name(run: DataRun) -> None:
    work = run.learner.assign_row("sums", 2, seeds=[5, 6])
    assert (work.row, work.held_out, [request.seed for request in work.requests]) == (2, True, [5, 6])
    assert work.prompt_ids == run.codec.encode(HELD_OUT[2]["prompt"])
    trained = run.learner.assign_row("sums", 7, seeds=[5], held_out=False)
    assert trained.prompt_ids == run.codec.encode(SUMS[7]["prompt"])
    with pytest.raises(IndexError):
        run.learner.assign_row("sums", 4, seeds=[5])


@pytest.mark.parametrize("bad", [(), (1,) * 9000, (10**6,)])
def test_prompt_that_no_model_can_read_makes_the_slot_void(
    run: DataRun, bad: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = data_slot(run)
    monkeypatch.setattr("p2prl.tasks.data.packed_data.PackedPrompts.token_ids", lambda self, row: bad)
    with pytest.raises(RemoteProtocolError):
        assigned(run.volunteer, slot)
