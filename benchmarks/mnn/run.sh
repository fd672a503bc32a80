#!/bin/sh
# Profile lenet5 in PyTorch and in MNN, and predict ten random networks: sh benchmarks/mnn/run.sh OUT
# More options are passed on: --offline evaluates what OUT already holds.
set -e
out=${1:?give a folder for the results}
shift
mkdir -p "$out"
for on in cpu mnn:cpu; do
    uptime
    joulecast evaluate lenet5 --on "$on" --threads 1 --estimators additive,additive-noprobe \
        --nets 10 --seconds 90 --seed 1506 --store "$out/store.sqlite" \
        --out "$out/lenet5-$(echo "$on" | tr : -).json" "$@"
done
uptime
