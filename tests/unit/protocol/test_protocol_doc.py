"""`docs/protocol.md` says what the code does: its tables are compared line by line."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from p2prl.protocol import limits, manifests, messages, policy_head
from p2prl.protocol.envelope import DOMAINS, SIGNED_MESSAGES, Envelope
from p2prl.protocol.ledger_chain import LedgerEntry
from p2prl.protocol.messages import LINK_MESSAGES, Kind, Role, State
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.gossip.audience import AUDIENCE

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/protocol.md").read_text()


def table(header: str) -> list[list[str]]:
    """Cells of the rows below a table's header line."""
    lines = TEXT.splitlines()
    start = lines.index(header) + 2
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines[start:end]]


def fields(struct: type[Wire]) -> str:
    return ", ".join(field.name for field in msgspec.structs.fields(struct))


def test_kinds_with_their_numbers_families_and_fields() -> None:
    documented = [tuple(row) for row in table("| number | kind | family | fields |")]
    link = [(str(int(kind)), kind.name, "link", fields(struct)) for kind, struct in LINK_MESSAGES.items()]
    signed = [(str(int(kind)), kind.name, "signed", fields(struct)) for kind, struct in SIGNED_MESSAGES.items()]
    assert documented == sorted(link + signed, key=lambda row: int(row[0]))


def test_inner_structs() -> None:
    structs: tuple[type[Wire], ...] = (
        manifests.BlobRef,
        manifests.Patch,
        policy_head.PatchEdge,
        manifests.RunFile,
        manifests.TaskShare,
        manifests.Sampling,
        manifests.TensorSpec,
        messages.Completion,
        messages.EngineClass,
        messages.Receipt,
        LedgerEntry,
        Envelope,
    )
    assert dict(table("| struct | fields |")) == {struct.__name__: fields(struct) for struct in structs}


def test_limits_and_their_values() -> None:
    coded = {name: float(value) for name, value in vars(limits).items() if name.isupper()}
    documented = {row[0]: float(row[1]) for row in table("| limit | value | reason |")}
    assert documented == coded
    assert all(len(row[2]) > 10 for row in table("| limit | value | reason |"))


def test_domains() -> None:
    documented = [row[0] for row in table("| domain | what it names or signs |")]
    assert len(set(documented)) == len(documented)
    assert set(DOMAINS.values()) <= set(documented)
    sources = [path for room in ("p2prl", "protocol", "client", "validator") for path in ROOT.glob(f"{room}/**/*.py")]
    lines = [line for path in sources for line in path.read_text().splitlines() if not line.startswith("FORMAT = ")]
    spoken = {domain for line in lines for domain in re.findall(r'"(p2prl/[a-z-]+/v\d+)"', line)}
    assert set(documented) == spoken


def test_reasons_roles_states_and_audiences() -> None:
    assert [row[0] for row in table("| reason | state | meaning |")] == [str(reason) for reason in RejectionReason]
    roles = ", ".join(f"{int(role)} {role.name.lower()}" for role in Role)
    states = ", ".join(f"{int(state)} {state.name.lower().replace('_', ' ')}" for state in State)
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


def test_the_wire_version_and_the_run_files() -> None:
    assert f"Wire version **{limits.WIRE_VERSION}**" in TEXT
    assert all(f"`{name}`" in TEXT for name in manifests.RUN_FILE_NAMES)
    assert all(kind.name in TEXT for kind in Kind)
