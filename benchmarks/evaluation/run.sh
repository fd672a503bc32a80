#!/bin/sh
# A first evaluation on a real NVIDIA GPU: estimators on the same random nets of two families.
# Settings and seeds were written down here before anything was measured. What is measured is kept in
# OUT/store.sqlite at once; run again, it goes on where it was, and with --offline it only judges.
#
#     sh benchmarks/evaluation/run.sh OUT [--offline]
#     ESTIMATORS=additive,subtractive sh benchmarks/evaluation/run.sh OUT
set -e
out=$1
shift
estimators=${ESTIMATORS:-additive,additive-noprobe,subtractive,neuralpower,work-linear,flops-linear,flops,constant}
evaluate() {
    name=$1
    shift
    python3 -c 'from joulecast.cli.main import main; main()' evaluate "$@" --on cuda:0 --rounds 1 --seconds 60 \
        --estimators "$estimators" --store "$out/store.sqlite" --json > "$out/$name.json"
}
evaluate cnn5 cnn5 --batch 128 --input 3x96x96 --precision tf32 --nets 16 --seed 301 "$@"
evaluate transformer transformer --batch 128 --input 256 --precision bf16 --optimizer adamw --nets 14 --seed 302 "$@"
