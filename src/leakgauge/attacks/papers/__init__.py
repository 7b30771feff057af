"""The published attacks, with one file for each paper."""
