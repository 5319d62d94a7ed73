"""Settings: what a run is, as a user states it: loss, mechanism, inputs, sampling."""
