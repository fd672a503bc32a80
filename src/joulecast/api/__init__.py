"""The Python API: one module per verb, the option records, and how nets and devices are found.

    inspect.py  measure.py  profile.py  estimate.py  estimate_run.py  compare.py
    search.py   prune.py    plan.py     evaluate.py                  the verbs
    options.py                           option records, and keywords that become option records
    option_values.py                     types of their values
    nets.py  profiles.py  measurers.py   names that become networks, profiles and measurers
    command_cost.py  monitor.py          any command, or any block of a program, under a meter

``import joulecast`` offers the verbs; the command line parses options, calls these modules and
prints. Nothing here prints.
"""
