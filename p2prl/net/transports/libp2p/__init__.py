"""The light transport over py-libp2p: no foreign binary, no directory, some ten times slower than the daemon."""
