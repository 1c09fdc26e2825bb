"""Bodies of large groups: parts requested by hash where a group is wanted, and sent by the peers that have them."""
