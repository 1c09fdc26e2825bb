"""A lab of home networks: namespaces, routers of the kernel, lines with delay and loss, and a real swarm."""
