#!/bin/sh
# Everything about memory that needs a GPU:  sh bench/memory.sh [OUT] [STEP]
#   1  tests of streaming, rates, the curve of resident blocks in bf16     one GPU
#   2  the same curve in fp8 (FP8_ATTENTION=fa3-fp8: attention, too)       one GPU
#   3  text encoder, DiT, video decoder under --vram-budget 12GiB          one GPU, 120 GiB of RAM
#   4  shards for two ranks, at most LIMIT_S (200)                         two GPUs
# RANK_PARTS=tp_fp8,tp_bf16 takes some of step 4.
# Without STEP all that fit this machine. Needs no network and no diffusers. Steps accumulate in
# OUT/streaming-<device>.json, with the commit of each; every figure is printed as soon as it is known. On a machine that
# got a copy of the files, say which: BENCH_COMMIT=$(git rev-parse --short HEAD).
set -u
OUT=${1:-bench/results}
PYTHON=${PYTHON:-python3}
RANKS_LIMIT_S=${LIMIT_S:-200}
LIMIT_S=${LIMIT_S:-540}
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
ulimit -l unlimited 2>/dev/null
gpus=$($PYTHON -c "import torch; print(torch.cuda.device_count())")
steps=${2:-}
[ -n "$steps" ] || { [ "$gpus" -ge 2 ] && steps="4" || steps="1 2 3"; }
status=0
for step in $steps; do
  case $step in
    1) timeout 90 $PYTHON -m pytest -q -m gpu tests/placement || status=1
       $PYTHON -m bench.memory --parts rates,bf16 --limit-s "$LIMIT_S" --out "$OUT" || status=1 ;;
    2) $PYTHON -m bench.memory --parts rates,fp8 --attention "${FP8_ATTENTION:-auto}" --limit-s "$LIMIT_S" --out "$OUT" || status=1 ;;
    3) timeout "$LIMIT_S" $PYTHON -m bench.memory --parts rates,e2e --limit-s "$LIMIT_S" --out "$OUT" || status=1 ;;
    4) timeout $((RANKS_LIMIT_S + 40)) $PYTHON -m bench.memory --parts ranks --limit-s "$RANKS_LIMIT_S" --out "$OUT" \
         ${RANK_PARTS:+--rank-parts "$RANK_PARTS"} || status=1 ;;
    *) echo "unknown step $step" >&2; status=2 ;;
  esac
done
exit $status
