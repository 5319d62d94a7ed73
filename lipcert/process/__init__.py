"""The process that runs: its progress bars, its threads, and what must not be forked."""
