"""The command line: each command parses its options into records, calls the API and prints.

    NAME.py         one module per command
    print_*.py      the text that a command prints
    options.py      options that several commands share
    option_*.py     records made from options, and types of their values
    setups.py       setups in messages and commands
    bill.py         kWh, CO2e and money
    output.py       where results go: --json, --out, --plot
    streams.py      stdout for results, stderr for everything else
    terminal.py     tables, bars and notes
    console.py      text that cannot control the terminal
    progress.py     the progress bar
    interruptions.py  what is kept when the user interrupts
    settings.py     joulecast.toml and environment variables
    harmless_settings.py   which of them a foreign folder may set
    main.py         the program

A command's function takes at most seven records.
"""
