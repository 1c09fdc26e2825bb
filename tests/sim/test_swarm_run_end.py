"""The final ledger head and peers that join after the end of a run."""

from __future__ import annotations

from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.swarm.events import EnvelopeArrived
from tests.sim.node_swarm import events_of, publish_head, swarm


def test_newcomers_after_the_end_get_the_final_head() -> None:
    made = swarm(volunteers=2)
    made.publish(20_000)
    made.network.run_for(10)
    publish_head(made, finished=True)
    made.network.run_for(10)
    made.network.crash(made.members["learner"].peer)
    made.network.run_for(600)
    late = made.add("late", bootstrap=("v1",))
    board = made.add("board", Role.BOARD, bootstrap=("v0",))
    made.network.run_for(60)
    for member in (late, board):
        heads = [e.opened.body for e in events_of(member, EnvelopeArrived) if isinstance(e, EnvelopeArrived)]
        assert [head.finished for head in heads if isinstance(head, LedgerHead)] == [True], (
            "sent once, not at every hello"
        )


def test_a_revoked_final_head_is_not_passed_on() -> None:
    made = swarm(volunteers=2)
    made.publish(20_000)
    made.network.run_for(10)
    publish_head(made, finished=True)
    made.network.run_for(60)
    publish_head(made, finished=False)
    made.network.run_for(10)
    made.network.crash(made.members["learner"].peer)
    late = made.add("late", bootstrap=("v1",))
    made.network.run_for(60)
    heads = [e.opened.body for e in events_of(late, EnvelopeArrived) if isinstance(e, EnvelopeArrived)]
    assert not any(head.finished for head in heads if isinstance(head, LedgerHead))
