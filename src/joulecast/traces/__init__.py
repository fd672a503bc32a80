"""Read what instruments and other tools have written, and align it with our own measurements.

power_trace   samples of power over time, from CSV of Monsoon, Otii and other instruments
alignment     the clock of a trace against that of a run, by load pulses; energies of observations
run_logs      runs measured by Zeus, CodeCarbon and Carbontracker, and runs in CSV
"""
