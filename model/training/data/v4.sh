#!/usr/bin/env bash
# Trains version 4 of nano from the one that ships, and measures it, on a machine with one GPU or two:
#
#   BUNDLE=FOLDER [EDITS=FOLDER] [WORK=FOLDER] [FLAGS="of the trainer"] [DEVICE=cpu] v4.sh begin|more|finish|measure SECONDS
#
# Each stage ends after about SECONDS and leaves all that the next one needs in WORK (30 GB of a RAM disk). A stage
# that was broken off is begun again by the same words. docs/model.md tells what the stages do and why.
set -euo pipefail
stage=${1:?say begin, more, finish or measure} seconds=${2:?say for how many seconds}
: "${BUNDLE:?is not set: the folder that bundle.py unpacked}" "${WORK:=/dev/shm/nano}" "${EDITS:=}"
cd "$(dirname "$0")/../../.."
cores=$(nproc) gpus=1 mix=model/training/data/mix_v4.json # before OMP_NUM_THREADS, which nproc heeds
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
[ "$DEVICE" = cpu ] || gpus=$(nvidia-smi --list-gpus | wc -l)
mkdir -p "$WORK"
trap 'jobs -p | xargs -r kill 2>/dev/null; wait' EXIT

share() { # of 32 cores, at least one
    echo $(((cores * $1 + 31) / 32))
}

recorded() { # WORKERS SEED
    python3 -m pilotfish.tasks.episodes.record --out "$WORK/shards" --mix $mix --workers "$1" --pages 2 \
        --seed "$2" --bundle "$BUNDLE" --max-shards 4000 >"$WORK/record-$stage.txt" 2>&1 &
}

# Words that all sessions share; what stands behind them wins.
shared=(--shards "$WORK/shards" --out "$WORK/out" --tokens 98304 --workers 5 --copy-share 0.06 --text-share 0.02
    --question-share 0.36 --dense-share 0 --noise 0.02 --save-every 60 --device "$DEVICE" --seconds "$((seconds - 10))")
# Repositories of 60,000 tokens want more positions than nano has; no tensor depends on their number.
[ -z "$EDITS" ] || shared+=(--edits "$EDITS" --edit-share 0.12 --longest 65536
    --sizes '{"text": {"max_position_embeddings": 131072}}')
# shellcheck disable=SC2206  # words
shared+=($FLAGS)
one=(python3 -m pilotfish.model.training.train)
many=("${one[@]}")
[ "$gpus" = 1 ] || many=(torchrun --nproc-per-node "$gpus" -m pilotfish.model.training.train)

case $stage in
begin)
    recorded "$(share 18)" 61
    "${many[@]}" "${shared[@]}" --init model/nano --head-steps 60 --warmup 200 --decay-share 0.1 \
        --muon-lr 1.2e-3 --adam-lr 8e-4 --seed 61
    ;;
more)
    recorded "$(share 18)" 62
    "${many[@]}" "${shared[@]}" --resume "$WORK/out/checkpoint.pt" --warmup 30 --decay-share 0.1 \
        --muon-lr 1.2e-3 --adam-lr 8e-4 --seed 62
    ;;
finish)
    recorded "$(share 8)" 63
    mkdir -p "$WORK/corrections"
    CUDA_VISIBLE_DEVICES=$((gpus - 1)) python3 -m pilotfish.agent.corrections --model "$WORK/out" --follow \
        --device "$DEVICE" --bundle "$BUNDLE" --out "$WORK/corrections" --mix $mix --workers "$(share 13)" \
        --pages 4 --seed 64 --seconds "$seconds" >"$WORK/corrections.txt" 2>&1 &
    CUDA_VISIBLE_DEVICES=0 "${one[@]}" "${shared[@]}" \
        --resume "$WORK/out/checkpoint.pt" --corrections "$WORK/corrections" --correction-share 0.4 --warmup 30 \
        --decay-share 0.9 --muon-lr 1e-3 --adam-lr 6e-4 --seed 63
    tail -n 3 "$WORK/corrections.txt"
    ;;
measure)
    for ((gpu = 0; gpu < gpus; gpu++)); do
        CUDA_VISIBLE_DEVICES=$gpu python3 -m pilotfish.agent.quick_bench --model "$WORK/out" --device "$DEVICE" \
            --bundle "$BUNDLE" --out "$WORK/measured" --workers "$(share 14)" --pages 4 --each 50 \
            --part "$((gpu + 1))/$gpus" --seconds "$seconds" >"$WORK/measured-$gpu.txt" 2>&1 &
    done
    wait || true
    python3 -c 'import sys; from pathlib import Path; from pilotfish.agent.quick_bench import read_results, summary
print("\n".join(summary(read_results(Path(sys.argv[1])))))' "$WORK/measured"
    ;;
*)
    echo "$stage is no stage; say begin, more, finish or measure." >&2
    exit 2
    ;;
esac
