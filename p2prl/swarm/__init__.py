"""Rules of the swarm as pure state machines: directory, gossip, chunk relay, and the node that composes them.

Bytes, `now` and randomness come in as arguments; bytes, events and deadlines go out. The simulator and the network
process drive the same classes.
"""
