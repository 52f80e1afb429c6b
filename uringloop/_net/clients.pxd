"""Clients: create_connection, create_unix_connection, connect_accepted_socket."""
