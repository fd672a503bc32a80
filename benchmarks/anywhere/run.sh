#!/bin/sh
# run.py with the same options, started again after a CUDA error (exit code 3).
here=$(dirname "$0")
while :; do
    python3 "$here/run.py" "$@"
    code=$?
    [ "$code" -eq 3 ] || exit "$code"
done
