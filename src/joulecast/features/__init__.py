"""The verbs of Joulecast, one module or folder each.

A feature computes something, declares its arguments once (``arguments.py``) and returns a result
with ``to_dict()`` (its JSON) and ``report()`` (what people see of it). ``import joulecast``, the
command line, the dashboard and the callbacks call the same functions.
"""
