#!/usr/bin/env bash
# What running streams feel of prompts of 2,000 tokens that arrive: the gaps between their tokens, undisturbed, with the prompts computed
# on prefill nodes (ALWAYS) and with everything on the decode node (NEVER), on one cluster, alternating; per mode the median round and all
# of them. Nothing else should run meanwhile.
#   tests/bench/token_gaps.sh [ROUNDS [STREAMS [TOKENS]]]; $PROMPTS_PER_S (0.4); $SERVE: more options of serve
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5} streams=${2:-4} tokens=${3:-1500}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
if ! [ -x build/kvferry ] || ! [ -f "$model" ]; then
  echo "build/kvferry or $model is missing: run scripts/demo first"
  exit 77
fi
run=$(mktemp -d)
mkfifo "$run/ready"
unset KVFERRY_ROUTER KVFERRY_ADMIN KVFERRY_CONFIG KVFERRY_THREADS
# shellcheck disable=SC2086 # options
build/kvferry serve --model "$model" --listen 127.0.0.1:0 --kv-memory 512MiB ${SERVE:-} >"$run/ready" 2>"$run/log" &
serve=$! prompts=
trap 'kill $prompts $serve 2>/dev/null; wait 2>/dev/null; rm -rf "$run"' EXIT
exec 3<"$run/ready"
read -r -t 120 line <&3 || { tail -3 "$run/log"; exit 1; }
router=${line#*grpc=} router=${router%% *}
grep -o '[0-9]* prefill + [^;]*' "$run/log" | head -1

gaps() { # MODE of the streams, SEED: "median p99 max" of their gaps, ms
  build/kvferry bench serve --router "$router" --rate 1000 -n "$streams" --input-tokens 32 --output-tokens "$tokens" --disaggregate "$1" --seed "$2" \
    -o "$run/json" >/dev/null 2>>"$run/log"
  for key in median p99 max; do sed -n "s/.*\"${key}_itl_ms\":\([0-9.e+-]*\).*/\1/p" "$run/json"; done | tr '\n' ' '
}
for ((r = 0; r < rounds; r++)); do
  for mode in undisturbed always never; do
    if [ $mode != undisturbed ]; then
      build/kvferry bench serve --router "$router" --rate "${PROMPTS_PER_S:-0.4}" -n 100 --input-tokens 2000 --output-tokens 1 --disaggregate $mode --seed $((r + 1)) \
        >/dev/null 2>&1 &
      prompts=$!
    fi
    echo "$mode $(gaps ${mode/undisturbed/always} $((r + 100)))" >>"$run/gaps"
    if [ -n "$prompts" ]; then
      kill -TERM "$prompts"
      wait "$prompts" || true
    fi
    prompts=
  done
done
printf '%d streams of %d tokens, %d rounds; gaps between tokens, ms: median of the rounds (least to most)\n' "$streams" "$tokens" "$rounds"
printf '%-28s %22s %26s %10s\n' '' 'p50' 'p99' 'longest'
for mode in undisturbed always never; do
  sed -n "s/^$mode //p" "$run/gaps" | sort -g -k2 | awk -v m=$mode '
    { p50[NR] = $1; p99[NR] = $2; if ($3 > most) most = $3 }
    END {
      names["undisturbed"] = "undisturbed"; names["always"] = "prompts on the prefill node"; names["never"] = "all on the decode node"
      printf "%-28s %22.2f %8.2f (%.2f to %.2f) %10.1f\n", names[m], p50[int((NR + 1) / 2)], p99[int((NR + 1) / 2)], p99[1], p99[NR], most
    }'
done
