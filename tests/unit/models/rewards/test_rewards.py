"""The reward of a run: parts, refinements and weights against sums written out, through the slots of a real run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.rewards.run_reward import JudgedSteps, RunReward, token_rewards
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol.rollout_group import Completion
from tests.unit.learner.small_run import SmallRun, altered, identity

PROMPT = "3+4*2-7="  # 7, 4, 7
GOOD, REPEATED, SHORTCUT, WRONG = ("747#7", True), ("777747#7", True), ("#7", True), ("748#8", True)
ME = identity("volunteer")


def of(text: str, *completions: tuple[str, bool]) -> list[float]:
    return list(RunReward(text, ["chain4"]).rewards("chain4", PROMPT, completions).values)


def test_reward_of_each_part() -> None:
    group = (GOOD, REPEATED, SHORTCUT, WRONG, ("74", False))
    assert of("success", *group) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert of("2*success+outcome", *group) == [3.0, 3.0, 2.0, 1.0, 0.0]
    assert of("success+process", *group) == [5.0, 8.0, 2.0, 2.0, 2.0]
    assert of("success+process:clip", *group) == [1.0, 1.0, 1.0, -1.0, 0.0]
    assert of("success+process:delta", *group) == [2.0, 2.0, 1.0, 1.0, 1.0]
    assert of("success+0.5*process:clip+delta", *group, ("848#7", True)) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.75]


@given(st.integers(0, 30), st.integers(0, 2))
def test_repetition_pays_only_without_refinement(times: int, place: int) -> None:
    once = "747#7"
    again = once[: place + 1] + once[place] * times + once[place + 1 :]
    for refined in ("success+process:clip", "success+process:delta", "success+process:clip+delta"):
        first, second = of(refined, (once, True), (again, True))
        assert second == pytest.approx(first)
    first, second = of("success+process", (once, True), (again, True))
    assert second == pytest.approx(first + times)


@given(st.text("0123456789", max_size=20), st.sampled_from(["", "#", "#7", "#8"]))
def test_refined_process_rewards_are_bounded(digits: str, end: str) -> None:
    bare, clipped, both, delta = (
        of(f"success+process{kind}", (digits + end, False))[0] for kind in ("", ":clip", ":clip+delta", ":delta")
    )
    assert 0 <= bare <= len(digits) + 1
    assert clipped <= 0
    assert -0.5 <= both <= 0
    assert 0 <= delta <= 1


def test_learner_and_volunteer_compute_the_same_reward(tmp_path: Path) -> None:
    """The learner's inspection and the volunteer's packing agree, and success stays what an evaluation measures."""
    world = SmallRun(tmp_path)
    manifest = msgspec.structs.replace(world.manifest, reward="success+0.25*process")
    work = GroupWork(manifest, world.run, TextCodec(world.loaded.tokenizer, world.loaded.model))
    policy = world.publish(0, step=0)
    honest = world.group(policy, ME, 3)
    assignment = work.assign(beacon=policy.manifest.beacon, peer=ME.public_key, slot=3)
    codec = TextCodec(world.loaded.tokenizer, world.loaded.model)
    stop = min(codec.stop_ids)
    first = str(eval_chain(assignment.prompt)[0])
    plain = codec.encode(first + first)[-2:]
    made = [Completion(np.asarray([*plain, stop], "<u4").tobytes(), b"", True, 9.0)] * 2
    inspection = work.inspect(
        altered(honest, completions=tuple(made)), peer=ME.public_key, beacon=policy.manifest.beacon
    )
    assert work.rewards(inspection.assignment, inspection.token_ids) == (0.5, 0.5)
    assert work.successes(assignment, [[*plain, stop]]) == (0.0,)
    assert work.rewards(assignment, [[*plain, stop]]) == (0.5,)
    world.close()


def test_unknown_reward_says_what_to_install(tmp_path: Path) -> None:
    world = SmallRun(tmp_path)
    manifest = msgspec.structs.replace(world.manifest, reward="success+style")
    with pytest.raises(ConfigError, match=r"cannot work for the run.*style") as caught:
        GroupWork(manifest, world.run, TextCodec(world.loaded.tokenizer, world.loaded.model))
    assert "Install" in caught.value.remedy
    world.close()


def eval_chain(prompt: str) -> list[int]:
    """Running values from unreduced integers."""
    total, values = int(prompt[0]), []
    for sign, digit in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True):
        total = {"+": total + int(digit), "-": total - int(digit), "*": total * int(digit)}[sign]
        values.append(total % 10)
    return values


def test_data_task_has_no_process_scorer() -> None:
    assert RunReward("2*success", ["chain4", "gsm"], data_tasks=["gsm"]).of_success([0.25, 1.0]) == (0.5, 2.0)
    with pytest.raises(ConfigError, match="judges steps, and nothing judges those of gsm") as caught:
        RunReward("success+0.2*process", ["chain4", "gsm"], data_tasks=["gsm"])
    assert "--reward success" in caught.value.remedy


def test_plan_with_unknown_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match="sucess"):
        RunPlan(name="r", goal="g", task="chain4", model=None, reward="sucess")


class _Syllables:
    """A decoder whose tokens hold parts of characters: token n is byte n of a text in UTF-8."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(self.data[i] for i in token_ids).decode(errors="replace")


def test_steps_are_rewarded_on_the_token_that_ends_them() -> None:
    text = "aé€b"  # 1, 2, 3 and 1 bytes
    decoder = _Syllables(text)
    ids = range(len(decoder.data))
    steps = JudgedSteps(ends=(0, 1, 2), rewards=(0.5, -0.25, 1.0), rest=2.0)
    found = token_rewards(ids, text, steps, decoder.decode)
    assert [i for i, reward in enumerate(found) if not math.isnan(reward)] == [0, 2, 5, 6]
    assert [found[i] for i in (0, 2, 5, 6)] == [0.5, -0.25, 1.0, 2.0]
    assert token_rewards(ids, text, JudgedSteps((3,), (1.0,), 2.0), decoder.decode)[-1] == 3.0
    joined = token_rewards([0], "ab", JudgedSteps((0, 1), (1.0, 0.5), 2.0), lambda ids: "ab" if ids else "")
    assert joined == (3.5,)


@pytest.mark.parametrize(
    "reward", ["success+process", "2*success+0.5*process:clip+delta", "success+outcome+process:delta"]
)
def test_step_rewards_add_up_to_the_reward_of_the_completion(tmp_path: Path, reward: str) -> None:
    small_run = SmallRun(tmp_path)
    manifest = msgspec.structs.replace(small_run.manifest, reward=reward)
    codec = TextCodec(small_run.loaded.tokenizer, small_run.loaded.model)
    work = GroupWork(manifest, small_run.run, codec)
    assignment = work.assign(beacon=bytes(32), peer=ME.public_key, slot=3)
    (stop,) = codec.stop_ids
    texts = ["747#7", "777747#7", "#7", "74", "zz", "8"]
    ids = [[*codec.encode(text, rendered=True), *([stop] if "#" in text else [])] for text in texts]
    found = work.step_rewards(ids, work.start_rewards(assignment, ids)())
    for row, tokens, total in zip(found, ids, work.rewards(assignment, ids), strict=True):
        assert len(row) == len(tokens)
        assert not math.isnan(row[-1])
        assert sum(each for each in row if not math.isnan(each)) == pytest.approx(total)
    bare = GroupWork(small_run.manifest, small_run.run, codec)
    assert bare.step_rewards(ids, bare.start_rewards(assignment, ids)()) == ()
    small_run.close()
