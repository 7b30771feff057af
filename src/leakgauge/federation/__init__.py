"""Simulation of federated learning, with clients' local training, rounds, defences and recordings."""
