#!/bin/sh
# Everything about memory that needs a GPU, in one call of under ten minutes:  sh bench/memory.sh [OUT]
# One GPU: tests of streaming, the curve in bf16 and fp8, a clip's stages under a budget. Two: the shared host copy.
# Needs no network and no diffusers. Parts accumulate in OUT/streaming-<device>.json; every figure is printed at once.
set -u
OUT=${1:-bench/results}
PYTHON=${PYTHON:-python3}
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
ulimit -l unlimited 2>/dev/null
df -h /dev/shm | tail -1
gpus=$($PYTHON -c "import torch; print(torch.cuda.device_count())")
echo "$gpus GPUs"
status=0
if [ "$gpus" -ge 2 ]; then
  $PYTHON -m bench.memory --parts rates,dlo --limit-s 400 --out "$OUT" || status=1
else
  timeout 60 $PYTHON -m pytest -q -m gpu tests/placement/test_layerwise.py tests/placement/test_modulation_feed.py || status=1
  $PYTHON -m bench.memory --parts rates,e2e --limit-s 170 --out "$OUT" || status=1
  $PYTHON -m bench.memory --parts rates,bf16,fp8 --limit-s 350 --out "$OUT" || status=1
fi
exit $status
