"""The kinds of rows that the papers' tables have."""
