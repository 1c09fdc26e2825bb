"""The light transport over py-libp2p: no native binary, no directory, half the daemon's speed."""
