"""ONNX: files that are read, and ONNX Runtime, which runs networks on a processor."""
