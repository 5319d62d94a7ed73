"""Lowering: turn an ONNX model into a `Program`, the checker's own form of its computation."""
