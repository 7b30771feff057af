"""What clients and servers do: local training, one round, many rounds."""
