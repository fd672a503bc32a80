"""PyTorch: read, build and train nets. The only room that imports torch."""
