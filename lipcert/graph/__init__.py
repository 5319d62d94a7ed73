"""The graph: the steps of a program under the names of its file, and their values at examples."""
