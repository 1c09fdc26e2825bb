"""Testing tools for packages that extend p2prl, and for operators who try out the checks of their run.

* `memory_transport` — transports that share an event loop, without sockets, for tests of code that drives a transport.
* `adversaries` — engines of dishonest volunteers.
* `python -m p2prl.testing.cheating_volunteer` — `p2prl join` with a dishonest engine; `p2prl demo --cheats` starts it.

The product never imports this package: it is the highest layer, above the command line. `docs/testing.md` shows it in
use, with the tools of the laboratory (`p2prl_lab.testing`) for whole swarms, crashes, floods and fuzzing.
"""
