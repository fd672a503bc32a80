#!/bin/sh
# Everything the accuracy benchmark measures, in the order of what matters most, into OUT. Each step goes
# on where it was; what does not fit into SECONDS is left for the next call on the same card.
#
#     SETTINGS=har,lstm sh benchmarks/accuracy/run.sh OUT SECONDS settings      these settings, or all of them
#     TABLE=fresh sh benchmarks/accuracy/run.sh OUT SECONDS outside     nets outside families: fresh or test
#     sh benchmarks/accuracy/run.sh OUT SECONDS cost          error over device seconds, setting cnn5
#     SETTINGS=resnet-bf16 sh benchmarks/accuracy/run.sh OUT SECONDS rivals     the paper's method with blocks
#     sh benchmarks/accuracy/run.sh OUT SECONDS wide          transformers up to width 1024, for the shipped profile
set -e
out=$1
seconds=$2
what=$3
here=$(dirname "$0")
mkdir -p "$out"
joulecast() {
    python3 -c 'from joulecast.cli.main import main; main()' "$@"
}
case $what in
settings)
    # A setting takes up to 200 s: none is begun that may not end in time.
    python3 "$here/measure.py" "$out/test.sqlite" test --until $((seconds - 200)) --only "${SETTINGS:-}"
    ;;
outside)
    python3 "$here/outside.py" --on cuda:0 --store "$out/outside.sqlite" --which "${TABLE:-fresh}" --out "$out/outside" \
        --until-s "$seconds" --subtractive-s 0 --measure-only
    ;;
cost)
    python3 "$here/cost.py" measure "$out/cost.sqlite" --setting cnn5 --on cuda:0 --until "$seconds"
    ;;
rivals)
    python3 "$here/rivals.py" measure "$out/rivals.sqlite" --settings "${SETTINGS:-transformer-bf16,resnet-bf16}" \
        --estimators "${ESTIMATORS:-subtractive-blocks,work-linear}" --seconds "${BUDGET:-268}"
    ;;
wide)
    for precision in bf16 tf32; do
        joulecast profile transformer:1024,2 --on cuda:0 --batch 32 --input 256 --precision $precision --optimizer adamw \
            --seconds $((seconds / 2)) --rounds 1 --store "$out/wide.sqlite"
    done
    ;;
*)
    echo "settings, outside, cost, rivals or wide, not $what" >&2
    exit 2
    ;;
esac
