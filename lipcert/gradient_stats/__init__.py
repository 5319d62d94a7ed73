"""Signal: gradients of single examples, measured, to compare noise and bounds with. No bounds."""
