"""HTML: a page as one file that needs no other file, no network and no script."""
