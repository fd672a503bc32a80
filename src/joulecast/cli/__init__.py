"""The command line: each command parses its options into records, calls the API and prints.

NAME.py         one module per command
print_*.py      the text that a command prints
options.py      shared options, and records made from options
output.py       where results go: --json, --out, --plot
terminal.py     tables, bars and notes
progress.py     the progress bar
settings.py     joulecast.toml and environment variables
main.py         the program
"""
