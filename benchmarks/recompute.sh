#!/bin/sh
# Compute the tables of kept measurements again, without a device: run it after a change of an estimator.
#
#     sh benchmarks/recompute.sh [ECNAS]     ECNAS: folder of rtx6000.csv and two_gpus.csv (see benchmarks/ecnas)
#
# It takes about 2 minutes on two idle cores, and 10 more with EC-NAS. It writes
#
#     accuracy/results/    table.md, summary.json, nets.json and plots of the ten settings; cost.*; rivals.* if measured
#     ecnas/results/       draws.json (additive anew, everything else as kept), report.json, nets-learnt.svg
#
# Kept observations and the first judgement (summary-first.json) are never written.
set -e
here=$(dirname "$0")
accuracy=$here/accuracy
results=$accuracy/results
python=${PYTHON:-python3}
$python "$accuracy/report.py"
$python "$accuracy/cost.py" score "$results/observations-cost.json.gz"
for file in "$results"/observations-rivals-*.json.gz; do
    if [ -e "$file" ]; then
        rivals="$rivals $file"
    fi
done
if [ -n "$rivals" ]; then
    # shellcheck disable=SC2086
    $python "$accuracy/rivals.py" score $rivals
fi
if [ -n "$1" ]; then
    $python "$here/ecnas/run.py" --data "$1" --again additive
fi
