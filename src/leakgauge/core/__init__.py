"""The types and tools that every other package shares."""
