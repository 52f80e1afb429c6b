"""TLS: records, the protocol above a transport, and the program's transport."""
