"""One workflow a command: a federation's messages, attacks on them, and what the truth says about both."""
