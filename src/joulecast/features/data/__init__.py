"""Data of others: power traces of instruments, runs of other tools, and exported datasets.

attach        joules for observations that were recorded without a meter, from a power trace
power_trace   samples of power over time, from CSV of Monsoon, Otii and other instruments, and
              their clock against that of a run, by load pulses
import_runs   runs of Zeus, CodeCarbon, Carbontracker or a CSV; runs predicted as they report them
export        observations as CSV: tidy, as CodeCarbon has them, or as a dataset with a data card
"""
