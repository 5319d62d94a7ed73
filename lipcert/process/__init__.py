"""Process: progress bars, threads, and files that are written."""
