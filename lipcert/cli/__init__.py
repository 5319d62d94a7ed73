"""The command line: one file per verb, options and exit codes in one place each."""
