"""The command line.

main.py               the program, its commands, and how errors become exit codes
commands.py           a command from a verb: options from its arguments, output from its result
services.py           commands that run until they are interrupted
settings.py           joulecast.toml and environment variables; what a foreign file may set
streams.py            stdout for results, stderr for everything else
progress.py           the progress bar
"""
