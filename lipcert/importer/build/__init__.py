"""From the data path of an ONNX file to an ir.Graph: one module per family of ops."""
