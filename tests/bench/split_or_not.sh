#!/usr/bin/env bash
# When splitting pays, on two cores: goodput of one prefill and one decode node (ALWAYS, and AUTO) against one node that
# does everything with all cores (NEVER), on the four traces scaled to the model. Limits: five times what a lone request
# of the trace sees on the colocated node (p50 of TTFT and TPOT). Modes alternate, each on a fresh cluster as `serve` makes
# it: each node has its own core, and what is idle is lent, so that a decode node alone has all. Prints a line per trace
# and mode, and AUTO against the better of the two. Nothing else should run meanwhile.
#   split_or_not.sh [ROUNDS [REQUESTS [TRACE...]]]      TRACE: its file's name begins so; $KVF_TRACES: where the traces are;
# $LONE_RATE (0.2 a second) and $LONE_REQUESTS (20): of the unloaded run.
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

start() {
  mkfifo "$tmp/out"
  "$kvferry" serve --model "$model" --listen 127.0.0.1:0 --kv-memory 512MiB >"$tmp/out" 2>"$tmp/log" &
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
measure() { # MODE of requests
  bench --disaggregate "$1" --find-goodput --ttft "$ttft" --tpot "$tpot" -n "$requests" --warmup $((requests / 10)) --rate 1
  sed -n 's/.*"goodput":{"rate":\([0-9.e+-]*\).*/\1/p' "$tmp/json"
}

takes_part() { # TRACE's name
  [ ${#wanted[@]} = 0 ] && return
  for w in "${wanted[@]}"; do [[ $1 == "$w"* ]] && return; done
  return 1
}
for trace in "$traces"/{azure-2023-code.csv,azure-2023-conv.csv,mooncake-conversation.jsonl,mooncake-synthetic.jsonl}; do
  takes_part "$(basename "$trace")" || continue
  start
  bench --disaggregate never --rate "${LONE_RATE:-0.2}" -n "${LONE_REQUESTS:-20}" || { cat "$tmp/table"; exit 1; }
  ttft=$(awk -v v="$(value median_ttft_ms "$tmp/json")" 'BEGIN { printf "%.3fms", 5 * v }')
  tpot=$(awk -v v="$(value median_tpot_ms "$tmp/json")" 'BEGIN { printf "%.3fms", 5 * v }')
  stop
  echo "$(basename "$trace"): limits ttft=$ttft tpot=$tpot"
  for ((i = 0; i < rounds; i++)); do
    for mode in never always auto; do
      start
      echo "$mode $(measure $mode)" >>"$tmp/$(basename "$trace")"
      stop
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
