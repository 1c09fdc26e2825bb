"""The owner's key: create it, sign delegations of machines, install and revoke them."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from p2prl.cli.views.console import emit, say
from p2prl.config.owner_files import (
    Machine,
    add_revocation,
    key_file,
    load_delegation,
    load_machines,
    named_keys,
    owner_key_file,
    save_delegation,
    save_machine,
)
from p2prl.config.worker_folder import default_home, make_home
from p2prl.errors import ConfigError, IdentityError
from p2prl.net.storage.key_file import create_identity, load_identity, load_or_create_identity
from p2prl.protocol.delegation import (
    DAY_MS,
    DELEGATION_PREFIX,
    REVOCATION_PREFIX,
    Delegation,
    Revocation,
    parse_statement,
    sign_delegation,
    sign_revocation,
    statement_text,
)
from p2prl.protocol.identity import ENTROPY_BYTES, Identity, PeerId, peer_id_of, public_key_of
from p2prl.scoreboard.display_names import display_name
from p2prl.time_text import time_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Options of a delegation."""

    seat: str
    days: int
    name: str
    replace: bool


def owner_command(home: Path | None, *, as_json: bool) -> None:
    """Create the owner's key unless there is one, and show it."""
    path = owner_key_file(home or default_home())
    is_new = not path.exists()
    if is_new:
        make_home(home or default_home())
        create_identity(path, Identity.generate(os.urandom(ENTROPY_BYTES)))
    owner = load_identity(path)
    if as_json:
        emit({"owner": owner.peer_id, "name": display_name(owner.public_key), "created": is_new})
        return
    sys.stdout.write(f"{owner.peer_id}\n")
    if is_new:
        say(f"Created the owner's key of {display_name(owner.public_key)} in {path}.")
        say("Write down its words, p2prl key backup --seat owner: they decide over all your machines.")
    say("Next, on each machine that works for you: p2prl key delegate")


def delegate_command(home: Path | None, text: str, terms: Terms, *, as_json: bool) -> None:
    """Do the step of a delegation that `text` asks for: request, sign or install."""
    base = home or default_home()
    if text.strip().startswith(DELEGATION_PREFIX):
        document = _install(base, text, terms)
    elif text:
        document = _sign(base, text.strip(), terms)
    elif owner_key_file(base).exists():
        document = _sign_here(base, terms)
    else:
        document = _request(base, terms)
    if as_json:
        emit(document)
    elif document["step"] != "installed":
        sys.stdout.write(f"{document['line'] or document['machine']}\n")


def revoke_command(home: Path | None, machine: str, since: str, *, as_json: bool) -> None:
    """Sign the revocation of a machine, or keep one that was signed elsewhere."""
    base = home or default_home()
    if machine.strip().startswith(REVOCATION_PREFIX):
        revocation = parse_statement(machine)
        assert isinstance(revocation, Revocation)
        add_revocation(base, revocation)
        say(f"Kept: {_named(revocation.delegate)} is revoked. Workers here pass it on from their next start.")
    else:
        revocation = _revoke(base, machine, since)
        say(f"Revoked {_named(revocation.delegate)} from {time_text(revocation.from_ms)} on.")
        say("Workers of this machine pass it on from their next start. If none works here, take this line to one that")
        say("does, and run there: p2prl key revoke LINE")
        if not as_json:
            sys.stdout.write(statement_text(revocation) + "\n")
    if as_json:
        emit(
            {
                "machine": peer_id_of(revocation.delegate),
                "owner": peer_id_of(revocation.owner),
                "from": time_text(revocation.from_ms),
                "line": statement_text(revocation),
            }
        )


# --- the steps of a delegation --------------------------------------------------------------------------------------


def _request(base: Path, terms: Terms) -> dict[str, object]:
    """On the machine: tell which key the owner has to sign for."""
    make_home(base)
    machine = load_or_create_identity(key_file(base, terms.seat))
    say(
        f"This machine's key, {display_name(machine.public_key)}, asks for an owner. Where your owner's key is (p2prl "
        "key owner makes one), run p2prl key delegate with the peer id below; then here with the line it prints."
    )
    return _document("request", machine.public_key, None, terms.seat, "")


def _sign(base: Path, text: str, terms: Terms) -> dict[str, object]:
    """Where the owner's key is: sign for the machine with this peer id."""
    try:
        machine = public_key_of(PeerId(text))
    except IdentityError as error:
        raise IdentityError(
            f"{text[:60]!r} is neither a machine's peer id nor a line that begins with {DELEGATION_PREFIX}",
            remedy="Run p2prl key delegate on the machine, and copy what it says.",
        ) from error
    delegation = _signed(base, machine, terms)
    say(f"Signed: work of {_named(machine)} counts for {display_name(delegation.owner)}.")
    say("On that machine, run p2prl key delegate with this line:")
    return _document("signed", machine, delegation, "", statement_text(delegation))


def _sign_here(base: Path, terms: Terms) -> dict[str, object]:
    """Both keys are on this machine: sign and install at once."""
    path = key_file(base, terms.seat)
    machine = load_or_create_identity(path)
    delegation = _signed(base, machine.public_key, terms)
    _put(path.parent, delegation, terms)
    return _document("installed", machine.public_key, delegation, path.parent.name, statement_text(delegation))


def _install(base: Path, text: str, terms: Terms) -> dict[str, object]:
    """On the machine: consent to a delegation that the owner signed."""
    delegation = parse_statement(text)
    assert isinstance(delegation, Delegation)
    folders = [path.parent for path, key in named_keys(base) if key.public_key == delegation.delegate]
    if not folders:
        raise IdentityError(
            f"no worker here has the key that this delegation is for, {peer_id_of(delegation.delegate)}",
            remedy="Run it on the machine that asked for it; p2prl key show lists the keys of this one.",
        )
    _put(folders[0], delegation, terms)
    return _document("installed", delegation.delegate, delegation, folders[0].name, text.strip())


def _put(folder: Path, delegation: Delegation, terms: Terms) -> None:
    known, now_ms = load_delegation(folder, delegation.delegate), _now_ms()
    if delegation.expires_ms <= now_ms:
        raise IdentityError("this delegation is over", remedy="Sign a new one where the owner's key is.")
    if known is not None and known.owner != delegation.owner and known.expires_ms > now_ms and not terms.replace:
        raise IdentityError(
            f"{folder.name} works for {_named(known.owner)} until {time_text(known.expires_ms)}",
            remedy="Revoke it there first (p2prl key revoke), then repeat this with --replace.",
        )
    save_delegation(folder, delegation)
    say(f"{folder.name} works for {_named(delegation.owner)} until {time_text(delegation.expires_ms)}.")
    say("Runs learn of it when the worker starts next; its credit moves to the owner's row with a verified group.")


def _signed(base: Path, machine: bytes, terms: Terms) -> Delegation:
    owner = _owner(base)
    known = load_machines(base).get(peer_id_of(machine))
    serial = max(_now_ms(), known.serial + 1 if known else 0)
    name = terms.name or (known.name if known else "")
    expires_ms = _now_ms() + terms.days * DAY_MS
    delegation = sign_delegation(owner, machine, serial=serial, expires_ms=expires_ms, name=name)
    save_machine(base, Machine(peer_id=peer_id_of(machine), name=name, serial=serial, expires_ms=expires_ms))
    return delegation


def _revoke(base: Path, machine: str, since: str) -> Revocation:
    owner, machines = _owner(base), load_machines(base)
    named = [known.peer_id for known in machines.values() if known.name == machine or known.peer_id == machine]
    if len(named) > 1:
        raise ConfigError(f"several machines are called {machine!r}", remedy="Name it by its peer id: p2prl key show")
    try:
        public_key = public_key_of(PeerId(named[0] if named else machine))
    except IdentityError as error:
        raise IdentityError(
            f"{machine[:60]!r} is no machine of this owner", remedy="p2prl key show lists names and peer ids."
        ) from error
    peer_id = peer_id_of(public_key)
    known = machines.get(peer_id) or Machine(peer_id=peer_id, name="", serial=0, expires_ms=0)
    from_ms = _time_of(since) if since else _now_ms()
    revocation = sign_revocation(owner, public_key, serial=max(_now_ms(), known.serial + 1), from_ms=from_ms)
    add_revocation(base, revocation)
    save_machine(base, replace(known, serial=revocation.serial, revoked_from_ms=from_ms))
    return revocation


def _owner(base: Path) -> Identity:
    path = owner_key_file(base)
    if not path.exists():
        raise IdentityError(
            f"there is no owner's key in {base}",
            remedy="Run this where it is; p2prl key owner makes one, p2prl key restore --seat owner restores it.",
        )
    return load_identity(path)


def _document(step: str, machine: bytes, delegation: Delegation | None, seat: str, line: str) -> dict[str, object]:
    return {
        "step": step,
        "machine": peer_id_of(machine),
        "owner": None if delegation is None else peer_id_of(delegation.owner),
        "until": None if delegation is None else time_text(delegation.expires_ms),
        "seat": seat,
        "line": line,
    }


def _named(public_key: bytes) -> str:
    return f"{display_name(public_key)} ({peer_id_of(public_key)})"


def _now_ms() -> int:
    return int(time.time() * 1000)


def _time_of(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{text!r} is not a time", remedy="Write 2026-11-20 or 2026-11-20T08:30Z, in UTC.") from error
