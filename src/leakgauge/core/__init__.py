"""The types and tools that all other packages share."""
