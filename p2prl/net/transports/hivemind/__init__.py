"""The default transport: hivemind's go-libp2p daemon and Kademlia directory."""
