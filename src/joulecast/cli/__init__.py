"""The command line: one file per command, each parses, calls and prints.

``nets.py`` and ``rigs.py`` know no click and print nothing: the Python API uses them too.
"""
