"""`p2prl sim`."""
