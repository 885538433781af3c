#!/usr/bin/env bash
# What shipping pages costs a lone request: time to first and to second token of one prompt with ALWAYS against NEVER, on an idle cluster,
# alternating in one run, best of each. Prints the ratios, the transfer time and the part of it that computing did not hide, and what checking
# the pages costs: CRC on both sides (xfer_bench --crc, same page size and number) as a share of the quickest hand-off's time from Reserve to
# Committed (the prefill node's queue, prefill and exposed time), as if none of it were hidden.
#   tests/bench/ship_ratio.sh [ROUNDS] [PROMPT_WORDS]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-7} words=${2:-990}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
[ -x build/kvferry ] && [ -f "$model" ] || {
  echo "build/kvferry or $model is missing: run scripts/demo first"
  exit 77
}
run=$(mktemp -d)
mkfifo "$run/ready"
build/kvferry serve --model "$model" --listen 127.0.0.1:0 >"$run/ready" 2>"$run/log" &
serve=$!
trap 'kill $serve 2>/dev/null; wait $serve 2>/dev/null; rm -rf "$run"' EXIT
exec 3<"$run/ready"
read -r -t 120 line <&3
grpc=$(printf '%s' "$line" | grep -oE 'grpc=[^ ]+' | cut -d= -f2)

# one MODE SALT: "ttft second transfer_us pages prompt" of a two-token completion of a prompt that nothing has cached
one() {
  local prompt
  prompt="$2 $(for ((i = 0; i < words; i++)); do printf 'word '; done)"
  build/kvferry complete "$prompt" -n 2 --temperature 0 --disaggregate "$1" --router "$grpc" --json |
    grep -oE '"(ttft_us|decode_us|transfer_us|pages_moved|prompt_tokens)": ?[0-9]+' | tr -d '" ' | sort -u | tr '\n' ' '
}
field() { printf '%s' "$1" | grep -oE "$2:[0-9]+" | head -1 | cut -d: -f2; }
least() { [ -z "$1" ] || [ "$2" -lt "$1" ] && echo "$2" || echo "$1"; }

one always warm >/dev/null
one never warm2 >/dev/null
a1="" a2="" n1="" n2="" moved="" pages="" prompt=""
for ((r = 0; r < rounds; r++)); do
  for mode in always never; do
    out=$(one "$mode" "$mode$r$RANDOM")
    t1=$(field "$out" ttft_us)
    t2=$((t1 + $(field "$out" decode_us)))
    prompt=$(field "$out" prompt_tokens)
    if [ "$mode" = always ]; then
      a1=$(least "$a1" "$t1") a2=$(least "$a2" "$t2")
      moved=$(field "$out" transfer_us) pages=$(field "$out" pages_moved)
    else
      n1=$(least "$n1" "$t1") n2=$(least "$n2" "$t2")
    fi
  done
done
awk -v a1="$a1" -v n1="$n1" -v a2="$a2" -v n2="$n2" -v m="$moved" -v p="$pages" -v t="$prompt" -v r="$rounds" 'BEGIN {
  printf "prompt of %d tokens, %d rounds, best of each\n", t, r
  printf "%-22s %10s %10s %8s\n", "", "ALWAYS ms", "NEVER ms", "ratio"
  printf "%-22s %10.1f %10.1f %8.3f\n", "time to first token", a1/1000, n1/1000, a1/n1
  printf "%-22s %10.1f %10.1f %8.3f\n", "time to second token", a2/1000, n2/1000, a2/n2
  printf "last hand-off: %d pages in %.1f ms, first page sent to commit acknowledged\n", p, m/1000
}'
grep -E 'pages [1-9]' "$run/log" | grep -oE 'transfer [0-9.]+ms \(exposed [0-9.]+ms\)' | tail -1
page_bytes=$(grep -oE 'pages [1-9][0-9]* bytes [0-9]+' "$run/log" | tail -1 | awk '{print $4 / $2}')
crc=$(build/kvtransfer/xfer_bench --crc "$pages" "$page_bytes")
echo "$crc"
grep -oE "queue [0-9.]+ms prefill [0-9.]+ms transfer [0-9.]+ms \(exposed [0-9.]+ms\).* pages $pages " "$run/log" | tr -d '(ms)' | awk -v crc="$crc" -v p="$pages" '
  { whole = $2 + $4 + $8; if (!best || whole < best) best = whole }
  END {
    n = split(crc, word, /[ ,]+/) # ends in "from memory N, from cache M ns a page": the sender reads from memory, the receiver has just copied
    spent = p * (word[n - 6] + word[n - 3]) / 1e6
    printf "crc of %d pages on both sides: %.2f ms of %.1f ms from Reserve to Committed: %.3f %%\n", p, spent, best, 100 * spent / best
  }'
