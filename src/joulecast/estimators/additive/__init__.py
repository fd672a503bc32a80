"""The default method: energy of a network as the sum of its layers and blocks."""
