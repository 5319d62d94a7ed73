"""Numbers and names as they are printed."""
