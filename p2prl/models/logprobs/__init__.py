"""Log-probs of given tokens, with and without gradient, for training and replays, a tile of the head at a time."""
