"""`docs/protocol.md` agrees with the code: its tables are compared line by line."""

from __future__ import annotations

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import msgspec

from p2prl.learner.intake import slot_accounts
from p2prl.models.replay_statistics import baselines as noise_baselines
from p2prl.models.replay_statistics import judge as replay_statistics
from p2prl.models.replay_statistics import noise as replay_noise
from p2prl.protocol import limits, manifests, policy_head, run_file_names, wire_version
from p2prl.protocol.envelope import DOMAINS, SIGNED_MESSAGES, Envelope
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_chain import LedgerEntry
from p2prl.protocol.ledger_messages import Receipt, ReceiptState, VerdictCheck
from p2prl.protocol.link_messages import LINK_MESSAGES
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.membership_statements import TeamName
from p2prl.protocol.rejection_reasons import FAULTS, RejectionReason
from p2prl.protocol.rollout_group import Completion, EngineClass
from p2prl.protocol.wire_codec import Wire
from p2prl.protocol.wire_version import WIRE_VERSION
from p2prl.scoreboard.display_names import ADJECTIVES, ANIMALS
from p2prl.swarm.gossip.forwarding import AUDIENCE

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/protocol.md").read_text()

INNER: tuple[type[Wire], ...] = (
    manifests.BlobRef,
    manifests.Patch,
    policy_head.PatchEdge,
    manifests.RunFile,
    manifests.TaskShare,
    manifests.DataSet,
    LoraSpec,
    manifests.Sampling,
    manifests.TensorSpec,
    Completion,
    EngineClass,
    Receipt,
    VerdictCheck,
    TeamName,
    LedgerEntry,
    Envelope,
)
"""Structs that occur only inside messages."""


def table(header: str) -> list[list[str]]:
    """Cells of the rows below a table's header line."""
    lines = TEXT.splitlines()
    start = lines.index(header) + 2
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines[start:end]]


def fields(struct: type[Wire]) -> str:
    return ", ".join(field.name for field in msgspec.structs.fields(struct))


def types_of(struct: type[Wire]) -> str:
    return ", ".join(type_name(field.type) for field in msgspec.structs.fields(struct))


def type_name(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"list of {type_name(get_args(kind)[0])}"
    if isinstance(kind, UnionType):
        return " or ".join("nil" if each is NoneType else type_name(each) for each in get_args(kind))
    return "text" if kind is str else str(kind.__name__)


def test_kinds() -> None:
    documented = [tuple(row) for row in table("| number | kind | family | fields |")]
    link = [(str(int(kind)), kind.name, "link", fields(struct)) for kind, struct in LINK_MESSAGES.items()]
    signed = [(str(int(kind)), kind.name, "signed", fields(struct)) for kind, struct in SIGNED_MESSAGES.items()]
    assert documented == sorted(link + signed, key=lambda row: int(row[0]))


def test_inner_structs() -> None:
    assert dict(table("| struct | fields |")) == {struct.__name__: fields(struct) for struct in INNER}


def test_types() -> None:
    coded = {kind.name: types_of(struct) for kind, struct in (LINK_MESSAGES | SIGNED_MESSAGES).items()}
    coded |= {struct.__name__: types_of(struct) for struct in INNER}
    assert dict(table("| message or struct | types |")) == coded


def test_replay_noise() -> None:
    documented = {row[0]: float(row[1]) for row in table("| type | unit roundoff |")}
    assert documented == replay_noise.UNIT_ROUNDOFF
    coded = {
        "variance per layer": replay_noise.VARIANCE_PER_LAYER,
        "slack": replay_noise.SLACK,
        "logit floor": replay_noise.LOGIT_FLOOR,
        "widest roundoffs": replay_noise.WIDEST_ROUNDOFFS,
        "false rejects": replay_statistics.FALSE_REJECTS,
        "impossible": replay_statistics.IMPOSSIBLE,
        "credited logits": replay_statistics.CREDITED_LOGITS,
        "most margin": replay_statistics.MOST_MARGIN,
        "log-prob floor": replay_statistics.LOGPROB_FLOOR,
        "least peers": noise_baselines.LEAST_PEERS,
        "safety": noise_baselines.SAFETY,
    }
    assert {row[0]: float(row[1]) for row in table("| replay constant | value |")} == coded


def test_slot_accounts() -> None:
    coded = {name: float(value) for name, value in vars(slot_accounts).items() if isinstance(value, int | float)}
    assert {row[0]: float(row[1]) for row in table("| slot constant | value | meaning |")} == coded
    faults = TEXT.split("or when its group is rejected as ")[1].split(".")[0]
    assert set(re.findall(r"`(\w+)`", faults)) == {str(reason) for reason in FAULTS}


def test_display_name_lists() -> None:
    for heading, words in (("Adjectives:", ADJECTIVES), ("Animals:", ANIMALS)):
        listed = TEXT.split(f"\n{heading}\n\n")[1].split("\n\n")[0]
        assert tuple(listed.split()) == words


def test_limits() -> None:
    coded = {name: float(value) for name, value in vars(limits).items() if name.isupper()}
    coded["WIRE_VERSION"] = WIRE_VERSION
    documented = {row[0]: float(row[1]) for row in table("| limit | value | reason |")}
    assert documented == coded
    assert all(len(row[2]) > 10 for row in table("| limit | value | reason |"))


def test_domains() -> None:
    documented = [row[0] for row in table("| domain | what it names or signs |")]
    assert len(set(documented)) == len(documented)
    assert set(DOMAINS.values()) <= set(documented)
    sources = [path for top in ("p2prl", "protocol", "client", "validator") for path in ROOT.glob(f"{top}/**/*.py")]
    lines = [line for path in sources for line in path.read_text().splitlines() if not line.startswith("FORMAT = ")]
    spoken = {domain for line in lines for domain in re.findall(r'"(p2prl/[a-z-]+/v\d+)"', line)}
    assert set(documented) == spoken


def test_reasons_roles_states_and_audiences() -> None:
    assert [row[0] for row in table("| reason | state | meaning |")] == [str(reason) for reason in RejectionReason]
    roles = ", ".join(f"{int(role)} {role.name.lower()}" for role in Role)
    states = ", ".join(f"{int(state)} {state.name.lower().replace('_', ' ')}" for state in ReceiptState)
    flowing = " ".join(TEXT.split())
    assert f"Roles: {roles}." in flowing
    assert f"Receipt states: {states}." in flowing
    audiences = {row[0]: row[1] for row in table("| kind | meant for |")}
    everybody = frozenset(Role)
    coded = {
        kind.name: "everybody" if roles == everybody else ", ".join(r.name.lower() for r in Role if r in roles)
        for kind, roles in AUDIENCE.items()
        if roles
    }
    order = {kind: set(text.split(", ")) for kind, text in audiences.items()}
    assert order == {kind: set(text.split(", ")) for kind, text in coded.items()}


def test_wire_version_and_run_files() -> None:
    assert f"Wire version **{wire_version.WIRE_VERSION}**" in TEXT
    assert all(f"`{name}`" in TEXT for name in run_file_names.RUN_FILE_NAMES)
    assert all(kind.name in TEXT for kind in Kind)
