"""The network process, its handle in the role process, and the control messages between the two."""
