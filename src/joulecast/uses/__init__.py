"""Applications of estimates: compare, evaluate, plan, prune and search.

``prune_options.py``, ``search_options.py`` and ``progress_report.py`` import nothing heavy, so that
the API and the command line can describe options before they need an estimator.
"""
