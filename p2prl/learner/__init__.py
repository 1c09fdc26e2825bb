"""The learner's role: collect groups, check them, train on them, publish the policy, and sign for everything.

Three threads, each behind a `Stage` (`timing`):

* the main thread talks to the network and owns the journal and the ledger: `Learner.turn` is its loop;
* the replay thread has the scorer: it replays groups, and between two replays evaluates published versions;
* the training thread has the trainer: it takes optimizer steps, and copies the weights for a version. A fourth thread
  writes the files of a version, for which nobody waits.

A job touches nothing of the main thread's. A simulation runs the same jobs inline, in a fixed order.

The life of a group (`intake`, `journal`)::

    arrives ──> STORED ──> VERIFIED ──> USED        trained on
       │           │           └──────> UNUSED      too stale by then, or one too many: credited all the same
       │           ├──────────────────> REJECTED    a check failed
       │           └──────────────────> EXPIRED     too stale when its turn came; nobody's fault
       └── turned away before it is stored: no room, too fast, no such policy, excluded

A group past STORED has its receipt in the ledger. The checks are in the order of their cost:
digest, signature, room, slot, tokens, replay, score.

The life of an update is `Training.update` in `update.py`: draw a batch from the buffer, record it, take the step, log
it, and checkpoint now and then. A turn begins one action, which `timing.next_update` chooses:

    COLLECT   too few groups are ready, the training thread is busy, or the pause between two updates lasts
    STEP      a batch is ready
    PUBLISH   κ updates have passed since the last version; the first version goes out before the first group
    FINISH    all updates are done and the last version is sent; `shutdown` then settles what is left

Groups are stored, checked and receipted at any time, whatever the training thread does. A version waits only for the
version before it.

Three invariants, of which each holds after SIGKILL at any moment:

1. What is said is on disk. A group is stored before its storage receipt is sent, a receipt is in the journal before it
   is gossiped, and a manifest before it is published. So no second manifest is ever signed for a version.
2. An update is repeated to the bit. Its batch is recorded before it is computed, and the step depends on the batch, the
   weights, the optimizer and the recorded micro-batches alone. No group is trained on twice.
3. Only the learner's own numbers are trained on: log-probs from its replay, rewards from its scorers. A volunteer's
   claims are compared with them, and no batch is filled by keys alone (`intake.batch_caps`).
"""
