"""Files and data by role: answers and code only go where answers are scored, or passed on unread."""

from __future__ import annotations

import msgspec
import pytest

from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DataSet, TaskShare, blob_of
from p2prl.protocol.run_blobs import blobs_for, data_blobs
from p2prl.testing.protocol_swarm import run_manifest_of

PROMPTS, ANSWERS, CODE = blob_of(b"prompts", 4096), blob_of(b"answers", 4096), blob_of(b"code", 4096)
BARE = run_manifest_of(Identity(bytes(16)))
RUN = msgspec.structs.replace(
    BARE,
    tasks=(*BARE.tasks, TaskShare("own", 1.0), TaskShare("plain", 1.0)),
    data_sets=(DataSet("own", 3, PROMPTS, ANSWERS, "{}", CODE), DataSet("plain", 3, PROMPTS, ANSWERS, "{}")),
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
