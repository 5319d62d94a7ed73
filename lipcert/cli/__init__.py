"""The command line: one file per verb; options and exit codes are each in one place."""
