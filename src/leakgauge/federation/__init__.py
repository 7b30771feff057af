"""Clients and servers: local training, one round, many rounds, defences and recordings."""
