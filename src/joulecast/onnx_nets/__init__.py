"""Read networks from ONNX files, without running or loading them."""
