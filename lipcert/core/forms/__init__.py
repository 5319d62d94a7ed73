"""What chains of layers do as a whole: quadratic forms."""
