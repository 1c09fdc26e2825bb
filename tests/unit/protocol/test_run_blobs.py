"""Files and data by role: answers and code only go where answers are scored, or passed on unread."""

from __future__ import annotations

import msgspec
import pytest

from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DataSet, TaskShare, blob_of
from p2prl.protocol.run_blobs import blobs_for, data_blobs, is_third_party
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.tasks.scorers.build import runs_third_party_code
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS

PROMPTS, ANSWERS, CODE = blob_of(b"prompts", 4096), blob_of(b"answers", 4096), blob_of(b"code", 4096)
EXACT = scoring_spec(Scoring(rewards=(Reward(scorer="exact"),)))
BARE = run_manifest_of(Identity(bytes(16)))
RUN = msgspec.structs.replace(
    BARE,
    tasks=(*BARE.tasks, TaskShare("own", 1.0), TaskShare("plain", 1.0)),
    data_sets=(DataSet("own", 3, PROMPTS, ANSWERS, EXACT, CODE), DataSet("plain", 3, PROMPTS, ANSWERS, EXACT)),
)


@pytest.mark.parametrize(
    ("role", "runs_code", "expected"),
    [
        (Role.VOLUNTEER, False, ["prompts/own", "prompts/plain"]),
        (Role.VOLUNTEER, True, ["prompts/own", "prompts/plain"]),
        (Role.BOARD, False, ["prompts/own", "prompts/plain"]),
        (Role.VALIDATOR, False, ["prompts/own", "prompts/plain", "answers/plain"]),
        (Role.VALIDATOR, True, ["prompts/own", "answers/own", "code/own", "prompts/plain", "answers/plain"]),
        (Role.SEEDER, False, ["prompts/own", "answers/own", "code/own", "prompts/plain", "answers/plain"]),
        (Role.LEARNER, False, ["prompts/own", "answers/own", "code/own", "prompts/plain", "answers/plain"]),
    ],
)
def test_each_role_gets_what_it_uses(role: Role, runs_code: bool, expected: list[str]) -> None:
    blobs = data_blobs(RUN, role, runs_code=runs_code)
    assert [blob.name for blob in blobs] == expected
    assert {"prompts": PROMPTS, "answers": ANSWERS, "code": CODE}.items() >= {
        (blob.name.partition("/")[0], blob.blob) for blob in blobs
    }
    assert blobs_for(RUN, role, runs_code=runs_code) == RUN.files + blobs


def test_a_run_without_data_has_only_files() -> None:
    assert all(blobs_for(BARE, role) == BARE.files for role in Role)


def library_scored(name: str) -> DataSet:
    """A data set without code, scored by `exact` and another scorer."""
    options = {option: "answer" for option, rule in SCORER_OPTIONS[name].items() if rule.required}
    rewards = (Reward(scorer="exact"), Reward(scorer=name, options=options))
    return DataSet("own", 3, PROMPTS, ANSWERS, scoring_spec(Scoring(rewards=rewards)))


@pytest.mark.parametrize("name", sorted(SCORER_OPTIONS))
def test_a_cautious_validator_takes_no_answers_that_only_third_party_code_can_score(name: str) -> None:
    data = library_scored(name)
    run = msgspec.structs.replace(RUN, data_sets=(data,))
    third_party = runs_third_party_code(data.scoring)
    assert is_third_party(data) is third_party
    cautious = [blob.name for blob in data_blobs(run, Role.VALIDATOR)]
    assert cautious == ["prompts/own"] + ["answers/own"] * (not third_party)
    assert [blob.name for blob in data_blobs(run, Role.VALIDATOR, runs_code=True)] == ["prompts/own", "answers/own"]


@pytest.mark.parametrize("scoring", ["{}", "x", "[" * 8_000, "1", '{"rewards":[1]}', '{"rewards":[{"scorer":[]}]}'])
def test_scoring_that_nobody_can_read_is_not_built_in(scoring: str) -> None:
    assert is_third_party(DataSet("own", 3, PROMPTS, ANSWERS, scoring))
