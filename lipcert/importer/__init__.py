"""From an untrusted ONNX file to a verified `Graph`; protobuf stops here."""
