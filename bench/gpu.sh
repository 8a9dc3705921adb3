#!/bin/sh
# All results that need GPUs:  sh bench/gpu.sh OUT      about 14 minutes on two H200, 16 on one
# With two GPUs what needs both comes first; then forwards run on one while memory is measured on the other. One line of every
# log ends with "finished"; results are in OUT/*.json as soon as each part is done. Needs diffusers for the peer, fa3-fwd for
# the fastest attention; PyAV and pydantic for the last line (skipped with the reason where they are missing).
set -u
OUT=${1:-bench/results}
PYTHON=${PYTHON:-python3}
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
ulimit -l unlimited 2>/dev/null
mkdir -p "$OUT"
gpus=$($PYTHON -c "import torch; print(torch.cuda.device_count())") || exit 2
[ "$gpus" -ge 1 ] || { echo "no CUDA device" >&2; exit 2; }

forwards() {
  $PYTHON -m bench.dit_forward --repeats 2 --out "$OUT" --limit-s 620
  $PYTHON -m bench.text_encoder --out "$OUT" --limit-s 60
  timeout 120 $PYTHON -m bench.step_caches --quantization fp8 --repeats 2 --out "$OUT"
  echo "forwards finished"
}
memory() {
  # What keeps the host busy comes first: the small forwards at the end of dit_forward are as fast as the host.
  timeout 90 $PYTHON -m pytest -o addopts= -q -m gpu --continue-on-collection-errors tests/kernels tests/attention tests/codecs tests/engine tests/sampling
  FP8_ATTENTION=fa3-fp8 LIMIT_S=240 sh bench/memory.sh "$OUT" "3 2 1"
  echo "memory finished"
}

if [ "$gpus" -ge 2 ]; then
  (sh bench/memory.sh "$OUT" 4; echo "ranks finished") >"$OUT/ranks.log" 2>&1
  (export CUDA_VISIBLE_DEVICES=0; forwards) >"$OUT/forwards.log" 2>&1 &
  (export CUDA_VISIBLE_DEVICES=1; memory) >"$OUT/memory.log" 2>&1 &
  wait
else
  forwards >"$OUT/forwards.log" 2>&1
  memory >"$OUT/memory.log" 2>&1
fi
($PYTHON -m bench.precision --device cuda --quantization fp8 --attention fa3-fp8 --exact-attention sdpa --out "$OUT"
 echo "precision finished") >"$OUT/precision.log" 2>&1
tail -n 4 "$OUT"/forwards.log "$OUT"/memory.log "$OUT"/precision.log
