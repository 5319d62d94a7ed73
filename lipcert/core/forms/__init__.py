"""What chains of layers do as a whole: quadratic forms, and weights raised below ReLUs."""
