"""Record what a real federation exchanges, as observations on disk."""
