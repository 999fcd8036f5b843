"""Connections to clients: sockets, HTTP, accept and drain. Knows no ticket, engine or record."""
