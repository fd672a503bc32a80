"""Read what instruments and other tools have written, and align it with our own measurements.

power_trace   samples of power over time, and their energy
trace_files   CSV of Monsoon, Otii and other instruments
csv_tables    CSV files of others, with limits
alignment     the clock of a trace against the clock of a run, by load pulses
attachment    the energy of recorded observations
run_logs      runs measured by Zeus, CodeCarbon and Carbontracker, and runs in CSV
"""
