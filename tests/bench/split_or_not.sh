#!/usr/bin/env bash
# When splitting pays, on two cores: goodput of one prefill and one decode node (ALWAYS, and AUTO) against one node that
# does everything with all cores (NEVER), on the four traces scaled to the model: their lengths and shared prefixes at
# Poisson arrivals (a minute of a trace has bursts and silences, but no rate). Limits: five times what a lone request
# of the trace sees on the colocated node, at the 90th percentile, since 90 % must be inside (medians would be unreachable at
# any rate where prompts are of very different lengths). Modes alternate, each on a fresh cluster as `serve` makes
# it: each node has its own core, and what is idle is lent, so that a decode node alone has all. In the first round the
# colocated node is tried with each of $CHUNKS (decode.prefill_chunk_tokens), and the best is kept for all modes. Prints a line per trace
# and mode, and AUTO against the better of the two. Nothing else should run meanwhile.
#   split_or_not.sh [ROUNDS [REQUESTS [TRACE...]]]      TRACE: its file's name begins so; $KVF_TRACES: where the traces are;
# $LONE_REQUESTS (40): of the unloaded run; $LIMITS ("3659ms 35ms"): of TTFT and TPOT, instead of that run; $START_RATE (3): where
# searches begin, later ones at what the last of their mode found; $RECORD: a file to which every figure is added, and whose last ones are
# such beginnings.
set -u
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5} requests=${2:-120}; shift $(($# < 2 ? $# : 2))
wanted=("$@") kvferry=${KVFERRY:-$PWD/build/kvferry}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf traces=${KVF_TRACES:-../shared/traces} context=${CONTEXT:-2048}
[ -f "$model" ] || { echo "skip: no $model"; exit 77; }
[ -f "$traces/azure-2023-conv.csv" ] || { echo "skip: no traces in $traces"; exit 77; }
tmp=$(mktemp -d)
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT
unset KVFERRY_ROUTER KVFERRY_ADMIN KVFERRY_CONFIG KVFERRY_THREADS

: "${CHUNKS:=32 64 128}" "${START_RATE:=3}"

start() { # CHUNK of a node that also decodes
  echo "decode: {prefill_chunk_tokens: $1}" >"$tmp/config"
  mkfifo "$tmp/out"
  "$kvferry" serve --config "$tmp/config" --model "$model" --listen 127.0.0.1:0 --kv-memory 512MiB >"$tmp/out" 2>"$tmp/log" &
  server=$!
  read -r line <"$tmp/out" || { tail -3 "$tmp/log"; exit 1; }
  rm "$tmp/out"
  router=${line#*grpc=} router=${router%% *}
}
stop() {
  kill -TERM "$server"
  wait "$server"
  server=
}
value() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$2"; } # of one line of JSON
bench() { "$kvferry" bench serve --router "$router" --context "$context" --trace "$trace" -o "$tmp/json" "$@" >"$tmp/table" 2>>"$tmp/log"; }
measure() { # MODE of requests, CHUNK; sets $found
  local name=$1${2:+-$2}
  start "$2"
  bench --disaggregate "$1" --poisson --find-goodput --min-rate 0.25 --ttft "$ttft" --tpot "$tpot" -n "$requests" --warmup $((requests / 10)) --rate "${guess[$name]:-$START_RATE}"
  stop
  found=$(sed -n 's/.*"goodput":{"rate":\([0-9.e+-]*\).*/\1/p' "$tmp/json")
  [[ $found == 0 ]] || guess[$name]=$found
  echo "$(basename "$trace") $name $found" >>"${RECORD:-/dev/null}"
}
limits() { # sets $ttft and $tpot
  start "${CHUNKS%% *}"
  bench --disaggregate never --unloaded -n "${LONE_REQUESTS:-40}" || { cat "$tmp/table"; exit 1; }
  ttft=$(awk -v v="$(value p90_ttft_ms "$tmp/json")" 'BEGIN { printf "%.3fms", 5 * v }')
  tpot=$(awk -v v="$(value p90_tpot_ms "$tmp/json")" 'BEGIN { printf "%.3fms", 5 * v }')
  stop
}
best_chunk() { # sets $chunk and $found: the colocated node's first round
  local best=-1 c
  for c in $CHUNKS; do
    measure never "$c"
    printf '  colocated, chunks of %d: %s requests/s\n' "$c" "$found"
    if awk "BEGIN { exit !($found > $best) }"; then best=$found chunk=$c; fi
  done
  found=$best
}

takes_part() { # TRACE's name
  [ ${#wanted[@]} = 0 ] && return
  for w in "${wanted[@]}"; do [[ $1 == "$w"* ]] && return; done
  return 1
}
for trace in "$traces"/{azure-2023-code.csv,azure-2023-conv.csv,mooncake-conversation.jsonl,mooncake-synthetic.jsonl}; do
  takes_part "$(basename "$trace")" || continue
  declare -A guess=()
  while read -r of name found; do [[ $of != "$(basename "$trace")" || $found == 0 ]] || guess[$name]=$found; done 2>/dev/null <"${RECORD:-/dev/null}"
  read -r ttft tpot <<<"${LIMITS:-}"
  [ -n "$ttft" ] || limits
  echo "$(basename "$trace"): limits ttft=$ttft tpot=$tpot"
  for ((i = 0; i < rounds; i++)); do
    for mode in never always auto; do
      case $mode$i in
        never0) best_chunk ;;
        never*) measure never "$chunk" ;;
        *) measure $mode "$chunk" ;;
      esac
      echo "$mode $found" >>"$tmp/$(basename "$trace")"
    done
  done
  for mode in never always auto; do
    sed -n "s/^$mode //p" "$tmp/$(basename "$trace")" | sort -g |
      awk -v m=$mode '{ v[NR] = $1 } END { printf "  %-7s median %s requests/s, %s to %s\n", m, v[int((NR + 1) / 2)], v[1], v[NR] }'
  done
  awk '{ n[$1]++; v[$1, n[$1]] = $2 }
    function median(m,   i, j, t) {
      for (i = 1; i <= n[m]; i++) for (j = i + 1; j <= n[m]; j++) if (v[m, j] < v[m, i]) { t = v[m, i]; v[m, i] = v[m, j]; v[m, j] = t }
      return v[m, int((n[m] + 1) / 2)]
    }
    END {
      never = median("never"); always = median("always"); better = never > always ? never : always
      if (better > 0) printf("  split/colocated %.2f; auto/better %.2f\n", (never > 0 ? always / never : 0), median("auto") / better)
    }' "$tmp/$(basename "$trace")"
done
