"""Signal: gradients of single examples, measured, to hold noise and bounds against. No bounds."""
