"""The workflows, one for each command. A workflow gets clients' messages, attacks them and scores the results."""
