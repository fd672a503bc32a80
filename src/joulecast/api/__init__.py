"""The Python API: one function per verb, shared by the package root and the command line."""
