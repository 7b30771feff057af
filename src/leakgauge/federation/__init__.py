"""Clients and servers: their local training, single rounds, many rounds, defences and recordings."""
