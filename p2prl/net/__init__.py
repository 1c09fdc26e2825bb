"""Network and disk: the transport port and its adapters, the network process, the stores of weights and keys.

No other package names a network library. Nothing here imports torch, so a seeder or a scoreboard needs about forty
megabytes for it.

Two processes, one socket pair between them::

    role (learner, volunteer, ...)                network process
    NetworkHandle  ──── orders ──────────>  NetworkProcess ── NodeDriver ── Node ── Transport ── peers
                   <─── reports ──────────

The role computes for minutes without a break; the network process answers its neighbors within milliseconds. Most
messages are the signals that a node itself takes and gives (`p2prl.swarm.signals`); `process.control` has those of the
process around it, and `process.bridge` turns the events of a node into paths and sentences. The simulator uses the same
bridge in one thread, so a role cannot tell the difference.

States of a network process, as its role sees them:

    starting    `NetworkHandle` sends `Start`; orders are queued
    up          `NetworkUp` names the addresses; `Status` follows every two seconds
    failed      `Failed` names the cause: `NetworkHandle.poll` raises it in the role
    ended       the process died: the next `poll` starts another on the same port, and `on_start` resends what a fresh
                node must know. After five restarts within an hour the role gives up.
    suspended   the owner has paused the worker: no process, no messages, until `resume`

What may happen when: the role sends orders at any time and never waits for them to be read. Reports wait in its inbox;
those that strangers cause are dropped when it is full. Patches are decoded in the role's process, on a thread of their
own, even while the role is in a batch. When the role ends, its socket closes, and the network process ends with its
daemon.

Three invariants:

1. The loop of the network process is not held up: what must be computed from the weight chain is read on the store's
   thread, and patches are decoded by the role.
2. `storage` has a file under its name only when it is complete, and what is written in place has a redo record: a
   process killed at any moment leaves a store that the next one reads.
3. A stranger's address is dialed only if `swarm.peers.dial_rules` allow it, after its DNS name was resolved.
"""
