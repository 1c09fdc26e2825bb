"""The light transport over py-libp2p: no native binary, no directory, about ten times slower than the daemon."""
