"""Connections, datagrams, pipes, listening sockets, and the loop's methods that make them."""
