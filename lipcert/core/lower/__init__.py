"""What a model computes for one example, in the checker's own words: from ONNX to a `Program`."""
