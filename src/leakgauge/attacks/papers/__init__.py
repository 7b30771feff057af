"""The published attacks, one paper a file, each a short composition of parts."""
