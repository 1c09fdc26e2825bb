"""`p2prl runs`: listed runs that this machine could serve, by need, and the owner's lists of what it may serve."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, say, show
from p2prl.config.run_lists import ListName, RunLists, asked_indexes, change_list, load_lists, owner_id, run_or_owner
from p2prl.config.worker_folder import default_home
from p2prl.plain_text import counted
from p2prl.quantity_text import quantity, size_text

if TYPE_CHECKING:
    from p2prl.cli.commands.owner_controls import PlannedLimits
    from p2prl.index.run_choice import Machine, Offer, Wishes

runs_app = typer.Typer(
    help="Runs that are listed in public: which this machine could serve, and which it may.",
    epilog=epilog("p2prl runs"),
)

Indexes = Annotated[
    list[str] | None,
    typer.Option("--index", metavar="URL", help="An index to ask; may be repeated. Default: those you trust."),
]
Remove = Annotated[bool, typer.Option("--remove", help="Take it off the list.")]


@runs_app.callback(invoke_without_command=True)
def runs(context: typer.Context, index: Indexes = None, home: Home = None, as_json: AsJson = False) -> None:
    """Runs that are listed in public: which this machine could serve, and which it may.

    Those that need this machine most come first, with what each takes; then those left out, and why. A listing is a
    claim of its owner.
    """
    if context.invoked_subcommand is not None:
        if index or home or as_json:
            raise typer.BadParameter(
                f"options go after the subcommand: p2prl runs {context.invoked_subcommand} … --home FOLDER --json"
            )
        return
    base = home or default_home()
    urls = asked_indexes(base, index)

    from p2prl.cli.commands.owner_controls import plan_limits
    from p2prl.index.index_documents import NO_ENDORSEMENT
    from p2prl.index.rotation import Rotation
    from p2prl.index.run_choice import by_need
    from p2prl.index.run_finder import RunFinder

    now = time.time()
    listed = RunFinder(urls).look(now=now)
    wishes = wishes_of(load_lists(base))
    limits = plan_limits(home, ram_gb=0.0, upload_mbit=0.0, monthly_gb=0.0, disk_gb=0.0)
    rotation = Rotation(lambda: 0.0)
    machine = machine_of(base, limits, urls)
    offers = rotation.offers(listed.listings, machine, wishes, listed.faults, now)
    able = by_need(offers, wishes)
    others = [offer for offer in offers if offer.left_out]
    if as_json:
        emit(
            {
                "runs": [_document(offer, machine) for offer in able],
                "left_out": [{**_document(offer, machine), "why": offer.left_out} for offer in others],
                "silent_indexes": dict(listed.silent),
                "note": NO_ENDORSEMENT,
            }
        )
        return
    for offer in able:
        for line in _lines(offer, machine):
            show(line)
    for offer in others:
        show(f"left out: {offer.opened.listing.name} ({offer.run[:8]}…): {offer.left_out}")
    for url, why in listed.silent.items():
        say(f"{url} gave no answer: {why}")
    if not able:
        say("No listed run can use this machine now." if others else "No run is listed there now.")
    say(NO_ENDORSEMENT)


@runs_app.command("block", epilog=epilog("p2prl runs block"))
def block(
    which: Annotated[str, typer.Argument(metavar="OWNER|RUN", help="An owner's id, a run's, or a join link.")],
    remove: Remove = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Never serve this run, or any of this owner, by join --any. A worker that serves it now leaves it."""
    _change(home, "blocked", run_or_owner(which), remove=remove, as_json=as_json)


@runs_app.command("allow", epilog=epilog("p2prl runs allow"))
def allow(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="An owner's id, as p2prl runs shows it.")],
    remove: Remove = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Let join --any serve the runs of this owner, and of others that you allow, alone."""
    _change(home, "allowed", owner_id(owner), remove=remove, as_json=as_json)


@runs_app.command("trust", epilog=epilog("p2prl runs trust"))
def trust(
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of an index.")],
    remove: Remove = False,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Ask this index where no --index is given."""
    from p2prl.config.index_addresses import index_url

    _change(home, "indexes", index_url(url), remove=remove, as_json=as_json)


def _change(home: Path | None, name: ListName, identity: str, *, remove: bool, as_json: bool) -> None:
    lists = change_list(home or default_home(), name, identity, why="you", remove=remove)
    if as_json:
        emit({"blocked": _ids(lists, "blocked"), "allowed": _ids(lists, "allowed"), "indexes": _ids(lists, "indexes")})
        return
    say(f"{name}: {', '.join(_ids(lists, name)) or 'none'}")


def _ids(lists: RunLists, name: ListName) -> list[str]:
    return sorted(lists.ids(name))


def wishes_of(lists: RunLists, prefer: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> Wishes:
    """The wishes of a machine's owner: its lists, where `only` takes the place of the allowed owners."""
    from p2prl.index.run_choice import Wishes

    only_owners = frozenset(only) or lists.ids("allowed")
    return Wishes(prefer=prefer, only=only_owners, blocked=lists.ids("blocked"))


def machine_of(home: Path, limits: PlannedLimits, urls: Sequence[str]) -> Machine:
    """Memory and disk that a run may take here, and addresses that one which these indexes list may name."""
    from p2prl.config.index_addresses import is_on_this_machine
    from p2prl.config.machine_limits import FREE_SHARE, available_memory, free_disk
    from p2prl.index.run_choice import Machine
    from p2prl.net.transports.interface_addresses import private_networks
    from p2prl.swarm.peers.dial_rules import DialRules

    ram, disk = limits.machine.ram_bytes, round(limits.machine.disk_gb * 1e9)
    memory, free = available_memory(), int(FREE_SHARE * free_disk(home))
    dials = DialRules(private_networks(), is_local=all(map(is_on_this_machine, urls)))
    return Machine(memory_bytes=min(ram or memory, memory), disk_bytes=min(disk or free, free), dials=dials)


def _lines(offer: Offer, machine: Machine) -> list[str]:
    from p2prl.index.run_choice import dialed_link

    listing = offer.opened.listing
    misses = "no forecast yet" if listing.missing is None else f"misses {max(0, listing.missing):,}"
    volunteers = counted(listing.volunteers, "volunteer")
    needs = f"{size_text(listing.memory_bytes)} of memory, {size_text(listing.disk_bytes)} of disk"
    return [
        f"{listing.name}: {listing.goal}",
        f"    {volunteers}, {misses}; {listing.base_model}, {quantity(listing.parameters)} parameters",
        f"    takes {needs}, up to {size_text(listing.group_bytes)} of upload for a group",
        f"    content: {listing.content}",
        f"    owner {offer.owner}  run {offer.run}",
        f"    p2prl join {shlex.quote(str(dialed_link(offer.opened, machine)))}",
    ]


def _document(offer: Offer, machine: Machine) -> dict[str, object]:
    from p2prl.index.run_choice import dialed_link

    listing = offer.opened.listing
    return {
        "run": offer.run,
        "owner": str(offer.owner),
        "name": listing.name,
        "goal": listing.goal,
        "content": listing.content,
        "base_model": listing.base_model,
        "parameters": listing.parameters,
        "memory_bytes": listing.memory_bytes,
        "disk_bytes": listing.disk_bytes,
        "group_bytes": listing.group_bytes,
        "state": listing.state,
        "volunteers": listing.volunteers,
        "missing": listing.missing,
        "wanted": offer.wanted,
        "expires": listing.expires_ms / 1000,
        "join_link": str(dialed_link(offer.opened, machine)),
    }
