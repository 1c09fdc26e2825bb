"""A lab of home networks: namespaces, routers with chosen NAT behavior, lines with delay and loss, and a real swarm."""
