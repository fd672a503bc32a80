"""Frameworks that build and run trials: one package or file each."""
