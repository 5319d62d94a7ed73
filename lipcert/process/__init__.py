"""The running process: its progress bars, its threads, and objects that must not be forked."""
