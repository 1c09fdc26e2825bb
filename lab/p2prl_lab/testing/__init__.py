"""Testing tools, for this project's tests and benchmarks, and for changes of the protocol.

In one process, without sockets:

* `protocol_swarm` — a simulated swarm (`p2prl.sim`) of nodes without models, and their disks.
* `patched_swarm` — the same swarm with a learner that publishes real patches.
* `delayed_buffer` — a rollout buffer that delays verified groups, so that training gets stale data.
* `hostile_neighbors` — adversaries of the chunk relay, each in the place of a relay.
* `fuzz` — a seeded campaign over every decoder that a stranger's bytes reach (`python -m p2prl_lab.fuzz`).
* `patch_properties` — strategies for weights with any bit pattern, and properties of the patch codec (needs
  hypothesis).

With real processes and sockets on this machine:

* `swarm_processes` — start, kill and find the processes of a swarm; one process tree per role.
* `crash_run`, `disconnect_run` — one swarm whose roles are killed at random, or one of whose volunteers is cut off.
* `python -m p2prl_lab.testing.storm` — floods of strangers against a run, until it is killed.
* `run_audit` — check a finished run from its files alone: ledger, spools, journal, weights.
* `shaped_swarm`, `shaped_peer` — peers with a chosen uplink and downlink, one of which may serve corrupt chunks.
* `python -m p2prl_lab.testing.delayed_learner` — `p2prl learn` with delayed groups.

Packages that extend p2prl test with `p2prl.testing`, which is part of the product. `docs/testing.md` shows both in use.
"""
