"""A board of a simulated run in mid-training, for pictures, audits and requests; the same from every call."""

from __future__ import annotations

from p2prl.tasks.evaluation_report import CompletionOutcome, PromptOutcome, recorded_answers, task_report
from p2prl_lab.testing.sample_ledgers import START_S, MemorySource, crowd

CONTRIBUTORS, STEPS, PLANNED_STEPS = 180, 140, 200

ANSWERS = (("2 + 7 + 5 + 9 = ", "23", "2 2 9 ="), ("8 + 1 + 6 + 4 = ", "19", "81"))
"""Prompts with the answers of the last version and of the first."""


def evaluation(version: int, passed: int) -> dict[str, object]:
    """A line of the learner's results, with `passed` of 128 prompts answered right."""
    outcomes = []
    for number in range(128):
        prompt, right, wrong = ANSWERS[number % len(ANSWERS)]
        done = CompletionOutcome(score=float(number < passed), tokens=3, finished=True)
        outcomes.append(PromptOutcome(done, (), prompt, right if number < passed else wrong))
    report = task_report(outcomes, split="fresh", pass_above=0.5)
    answers = recorded_answers("chain4", outcomes[: len(ANSWERS)], pass_above=0.5)
    time = START_S + 25 * version
    return {"version": version, "step": version, "time": time, "tasks": {"chain4": report}, "answers": answers}


def simulated_source() -> MemorySource:
    """A run in mid-training, as seen by a board in the swarm."""
    writer = crowd(CONTRIBUTORS, steps=STEPS)
    return MemorySource(
        writer,
        signed_head=writer.signed_head(),
        policy_version=STEPS,
        learner_step=STEPS,
        total_steps=PLANNED_STEPS,
        connected_peers={"learner": 1, "validator": 3, "volunteer": 12},
        join_link="p2prl://chain-of-sums@2xg5…",
        evaluations=(evaluation(0, 0), evaluation(STEPS, 117)),
    )
