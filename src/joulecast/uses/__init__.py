"""Applications of estimates: evaluate, prune, score and reproduce.

``prune_options.py`` and ``progress_report.py`` import nothing heavy, so that the API and the command
line can describe options before they need an estimator.
"""
