"""`p2prl index serve`: an index of runs, for learners that list theirs and volunteers that look for one."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import Home
from p2prl.cli.views.console import say
from p2prl.config.index_addresses import index_url
from p2prl.config.worker_folder import default_home
from p2prl.errors import ConfigError, IdentityError
from p2prl.plain_text import counted
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.scoreboard.web.listen_port import bind

index_app = typer.Typer(no_args_is_help=True, help="An index of runs: learners list theirs, volunteers find them.")


@index_app.callback()
def _group() -> None:
    """An index of runs: learners list theirs, volunteers find them."""


@index_app.command("serve", epilog=epilog("p2prl index serve"))
def serve(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve; port 0 picks a free one.")
    ] = "127.0.0.1:8100",
    mirror: Annotated[
        list[str] | None,
        typer.Option("--mirror", metavar="URL", help="An index to copy listings from; may be repeated. Default: none."),
    ] = None,
    count: Annotated[
        list[str] | None,
        typer.Option(
            "--count",
            metavar="OWNER",
            help="Count the runs of this owner in sums over people: the peer id that p2prl runs --json shows; may be "
            "repeated. Default: nobody's.",
        ),
    ] = None,
    home: Home = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="Answer under any name, behind a proxy on this machine, as with a HOST others can reach."
        ),
    ] = False,
) -> None:
    """Serve an index of runs: a JSON API, a page, and a place to send listings to.

    Keeps listings in memory alone, each until it expires; learners send theirs again every minute. Ledgers of runs
    whose listing names a board are kept under --home. One that only this machine reaches, without --mirror, asks boards
    of this machine too.
    """
    host, port = host_and_port(listen)
    owners = frozenset(map(owner_id, count or ()))
    urls = [index_url(url) for url in mirror or ()]
    with bind(host, port, host_option="--listen", port_option="--listen") as listener:
        from p2prl.clock import SystemClock
        from p2prl.index.index_app import index_app as web
        from p2prl.index.index_state import IndexState
        from p2prl.index.ledger_following import LedgerFollowing
        from p2prl.index.mirroring import Mirroring
        from p2prl.index.public_web import PublicWeb
        from p2prl.scoreboard.web.web_server import WebServer
        from p2prl.swarm.peers.dial_rules import DialRules

        clock = SystemClock()
        state = IndexState(clock, owners=owners)
        mirroring = Mirroring(state, urls, clock.now)
        server = WebServer(host=host, port=port, listener=listener, is_public=public)
        # Runs are listed by this machine's own users then, who could ask its boards without an index.
        web_of_boards = PublicWeb(DialRules(is_local=not server.is_public and not urls))
        following = LedgerFollowing(state, (home or default_home()) / "index", web_of_boards)
        following.start()
        if owners:
            say(f"counts     the runs of {counted(len(owners), 'owner')}")
        if urls:
            mirroring.start()
            say(f"mirrors    {counted(len(urls), 'index', 'indexes')}")

        def end() -> None:
            mirroring.stop()
            following.stop()

        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after shutting down
            server.run(
                web(state, is_public=server.is_public),
                on_ready=lambda url: say(f"index      {url}   Ctrl-C stops it"),
                on_end=end,
            )


def owner_id(text: str) -> PeerId:
    """An owner's peer id. `ConfigError` for anything else."""
    try:
        public_key_of(PeerId(text))
    except IdentityError as error:
        raise ConfigError(
            f"--count {text[:80]!r} is no owner's peer id",
            remedy="It begins with 12D3KooW; p2prl runs --json shows it as owner.",
        ) from error
    return PeerId(text)


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of HOST:PORT; an IPv6 address stands in brackets. `ConfigError` for anything else."""
    host, colon, port = text.rpartition(":")
    is_bare_ip6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 65_536) or is_bare_ip6:
        raise ConfigError(f"{text[:80]!r} is not HOST:PORT", remedy="For example --listen 0.0.0.0:8100 or [::]:8100.")
    return host.strip("[]"), int(port)
