"""The peer-to-peer swarm as pure state machines: peer links, gossip, chunk relay, and the node that combines them.

Bytes, `now` and randomness come in as arguments; frames, events and deadlines go out. The simulator and the network
process drive the same classes.
"""
