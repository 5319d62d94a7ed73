"""The running process: its progress bars, its threads, and the files that it writes."""
