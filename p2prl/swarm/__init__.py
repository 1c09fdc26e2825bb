"""The peer-to-peer swarm as pure state machines: peer links, gossip, chunk relay, and the node that combines them.

Bytes, `now` and randomness come in as arguments; frames, events and deadlines go out. The simulator and the network
process drive the same classes.

A node has two phases::

    Node ── AwaitingManifest ──(the run manifest that the join link names)──> Running

Before the manifest a node accepts nothing but it, and keeps a few ledger heads for later: only the manifest says which
key is the learner's. Links, group bodies and chunks work in both phases (`NodeCore`).

Five parts, which know nothing of each other, and the rules for versions on top:

* `peers`: a link begins with a dial or a first frame, and counts from its hello on. `connections` admits, displaces and
  bans; `discovery` finds addresses; `topology` chooses who is introduced to whom.
* `gossip`: an envelope is offered by its digest, wanted, pushed, checked, then forwarded.
* `relay`: chunks of blobs on request. A sender grants slots; a receiver asks several senders for different chunks.
* `groups`: bodies of groups that are too large for an envelope, fetched part by part when the role wants them.
* ledger pages, which the role asks for and answers (`gossip.ledger_sync`).
* `policies`: a policy version goes through these states on each node::

    announced ──> downloading ──> patches complete ──> ready ──> served ──> released
                       └── whole weights complete ──────┘

  The newest version is downloaded first, by patches from a version at hand where that is shorter. The role decodes
  the patches and answers `VersionRebuilt`; a route that fails is replaced by another. A version is released when the
  node keeps newer ones in its place.

What may happen when: an order of the role (`Node.order`) and a frame (`Node.receive`) at any time; everything that
waits is done by `handle_timer` at `next_deadline`; frames leave, and peers are dialed, when the shell takes `commands`.

Three invariants:

1. `receive` never raises, on any bytes. It checks size, then signature, then schema; a fault is counted against the
   peer that sent it and against nobody else. What is only late (`StaleWorkError`) is nobody's fault.
2. Nothing is passed on or stored that was not verified: an envelope by its signature and the run's rules, a chunk by
   the tree that the learner signed. So a node never sends what could have it banned.
3. Everything that a stranger can make a node keep has a bound over all keys, since keys are free; known peers have room
   that newcomers cannot take.
"""
