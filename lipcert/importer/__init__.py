"""Importer: turn an untrusted ONNX file into a verified `Graph`; protobuf stays in this folder."""
