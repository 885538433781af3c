#!/usr/bin/env bash
# Exit statuses, help and messages of the program, without a cluster. Usage: cli_usage.sh PATH-OF-KVFERRY
set -u
kvferry=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0
unset KVFERRY_ROUTER KVFERRY_ADMIN KVFERRY_MODEL KVFERRY_CONFIG KVFERRY_THREADS

# expect STATUS TEXT-IN-STDERR ARGS...
expect() {
  local want=$1 text=$2 got
  shift 2
  "$kvferry" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
  got=$?
  if [ $got != "$want" ] || { [ -n "$text" ] && ! grep -qF -e "$text" "$tmp/err"; }; then
    echo "kvferry $*: exit $got (want $want), stderr: $(cat "$tmp/err") (want \"$text\")"
    failures=$((failures + 1))
  fi
}
# said TEXT: on stdout of the last call
said() {
  grep -qF -e "$1" "$tmp/out" && return
  echo "stdout lacks \"$1\": $(cat "$tmp/out")"
  failures=$((failures + 1))
}

"$kvferry" >"$tmp/out" 2>"$tmp/err"
[ $? = 64 ] || { echo "no command: not 64"; failures=$((failures + 1)); }
expect 0 "" --help
commands=$(sed -n 's/^  \([a-z][a-z-]*\( [a-z]*\)\{0,1\}\)  .*/\1/p' "$tmp/out" | grep -vE '^(kvferry|Exit)')
[ "$(echo "$commands" | wc -l)" -ge 25 ] || { echo "help lists too few commands: $commands"; failures=$((failures + 1)); }
while read -r command; do
  # shellcheck disable=SC2086
  expect 0 "" $command --help
  said "kvferry $command"
  # shellcheck disable=SC2086
  expect 64 "--no-such-flag" $command --no-such-flag
done <<<"$commands"

expect 0 "" version
said kvferry
expect 64 'did you mean "health"' heath
expect 64 "did you mean --temperature" complete --temprature 1 x
expect 64 "did you mean --kv-memory" serve --kv-memroy 1GiB
expect 64 "--model FILE is needed" serve
expect 64 "at most 32" serve --model x --prefill 30 --decode 30
expect 64 "1 to 32" serve --model x --prefill 0
expect 64 "" drain
expect 64 "wizard" role p0 wizard
expect 64 "rate R" bench serve
expect 64 "above 0" bench serve --rate 0
expect 64 "MIN:MAX" bench serve --rate 1 --input-tokens 9:3
expect 64 "needs a limit" bench serve --find-goodput
expect 64 "times of its own" bench serve --poisson --rate 1
expect 64 "has no rate" bench serve --unloaded --rate 1
expect 64 "neither ttft" bench serve --rate 1 --slo e2e=1s
expect 64 "sends nothing" bench serve --rate 1 --dump-workload x --json
printf "TIMESTAMP,ContextTokens,GeneratedTokens\\n2023-11-16 18:17:03,x,1\\n" >"$tmp/trace"
expect 1 "trace:2: ContextTokens: " bench serve --trace "$tmp/trace"
expect 64 "--layers" size
expect 64 "auto|always|never" complete --disaggregate sometimes x
expect 64 "token ids" detokenize --router 127.0.0.1:1 1 x

# Nobody listens on port 1.
for command in "complete x" "chat x" "tokenize x" "detokenize 1" models health nodes kv "top --once" "drain p0" "undrain p0" "role p0 decode" audit flush "bench serve --rate 1"; do
  # shellcheck disable=SC2086
  expect 69 "nothing answers at 127.0.0.1:1" $command --router 127.0.0.1:1
done
KVFERRY_ROUTER=127.0.0.1:1 expect 69 "127.0.0.1:1" health
KVFERRY_ADMIN=127.0.0.1:1 expect 69 "127.0.0.1:1" audit

expect 78 "model.path" prefill-node
expect 78 "engine.devices: 'x': expected numbers of CUDA devices" decode-node --model x --devices=0,x
expect 78 "engine.devices: '-1': expected numbers of CUDA devices" serve --model x --devices=-1
expect 78 "engine.devices: '99999999999': expected" prefill-node --model x --devices=99999999999
for command in decode-node serve; do
  expect 78 "engine.device_memory_percent: 3 shares for 2 devices" $command --model x --devices=0,1 --device-memory-percent=50,60,70
done
expect 64 "engine.device_memory_percent: out of range, expected 0 to 98" serve --model x --device-memory-percent=50,99
expect 78 "insecure" decode-node --model x --control 0.0.0.0:0
expect 78 "node.transfer" decode-node --model x --transfer 10.0.0.1:0
expect 78 "node.control" decode-node --model x --control 127.example:1 # a name, not an address of loopback
node=a,decode,127.0.0.1:1
expect 78 "router.listen" router --model x --node $node --listen 0.0.0.0:0
expect 78 "router.admin" router --model x --node $node --admin 0.0.0.0:0
expect 78 "router.nodes" router --model x --node a,decode,10.0.0.1:1
expect 1 "x" router --model x --node $node --listen 0.0.0.0:0 --insecure-networks # it goes on to the model
expect 78 "router.nodes" router --model x

# Certificates: what is missing or wrong is named. Those that are right are in e2e-tls.
expect 78 "tls.key" decode-node --model x --tls-cert c.pem
expect 78 "tls.ca" decode-node --model x --tls-cert c.pem --tls-key c.key
expect 78 "tls.cert" decode-node --model x --tls-ca ca.pem
expect 78 "router.tls_key" router --model x --node $node --router-tls-cert c.pem
expect 78 "router.tls_client_ca" router --model x --node $node --router-tls-client-ca ca.pem
for command in "decode-node" "prefill-node" "router --node $node"; do
  # shellcheck disable=SC2086
  expect 1 "$tmp/none.pem: cannot be read" $command --model x --tls-cert "$tmp/none.pem" --tls-key "$tmp/none.key" --tls-ca "$tmp/none.ca"
done
if command -v openssl >/dev/null; then # as docs/security.md makes them: taken, then the model is missing
  scripts/make-certs "$tmp/certs" d1 >/dev/null || failures=$((failures + 1))
  c="$tmp/certs"
  expect 1 "x: cannot open" decode-node --model x --control 0.0.0.0:0 --tls-cert "$c/d1.pem" --tls-key "$c/d1.key" --tls-ca "$c/ca.pem"
  grep -q "not signed\|readable\|can be read" "$tmp/err" && { cat "$tmp/err"; failures=$((failures + 1)); }
fi
expect 64 "need --tls-ca" nodes --tls-cert c.pem --tls-key c.key
expect 1 "$tmp/none.pem: cannot be read" nodes --tls-ca "$tmp/none.pem"
expect 69 "--tls-ca FILE" nodes --router 127.0.0.1:1
expect 64 "not a role" router --model x --node a,wizard,127.0.0.1:1
expect 1 "no-such-file.gguf" serve --model "$tmp/no-such-file.gguf"
expect 1 "no-such-file.gguf" prefill-node --model "$tmp/no-such-file.gguf"
expect 1 "no-such-file.gguf" tokenize --model "$tmp/no-such-file.gguf" x
expect 1 "no-such-file.gguf" perplexity --model "$tmp/no-such-file.gguf" --file /dev/null
printf 'GGUF\3\0\0\0' >"$tmp/cut.gguf"
expect 1 "cut.gguf" serve --model "$tmp/cut.gguf"

printf 'router:\n  lisen: 127.0.0.1:0\n  queue_max_requests: many\n' >"$tmp/bad.yaml"
expect 78 "bad.yaml:2:" config check "$tmp/bad.yaml"
grep -q 'bad.yaml:3:' "$tmp/err" || { echo "config check: not all errors at once"; failures=$((failures + 1)); }
expect 78 "bad.yaml" serve --model x --config "$tmp/bad.yaml"
printf 'kv:\n  memory: 64MiB\n' >"$tmp/good.yaml"
expect 0 "" config check "$tmp/good.yaml"
expect 0 "" config explain "$tmp/good.yaml" --threads 3
said "good.yaml"
expect 0 "" config schema
cp "$tmp/out" "$tmp/schema.yaml"
expect 0 "" config schema --json
said '"$schema"'

expect 0 "" size --layers 32 --kv-heads 32 --head-dim 128 --context 8192 --json
said '"kv_bytes_per_token":524288'
said '"kv_bytes_per_conversation":4294967296'
shape="--layers 32 --kv-heads 8 --head-dim 128 --heads 32 --params 8e9"
# shellcheck disable=SC2086
expect 0 "" size $shape --device h200 --json
said '"weights":"bf16","weight_bytes":16000000000'
# shellcheck disable=SC2086
expect 0 "" size $shape --device h200 --weights fp8
said "8.0 B weights as fp8 in 7.45 GiB"
# Of a model the device's own: 3 layers of 64, 4 heads of 16 over 2, ffn 160, vocabulary 320 twice.
expect 0 "" size --model tests/golden/tiny/llama.gguf --device h200 --weights fp8 --json
said '"weights":"fp8"'
expect 0 "" size --model tests/golden/tiny/llama.gguf --device h200 --json
said '"weights":"f16"'
expect 64 "auto|f16|bf16|fp8" size --model tests/golden/tiny/llama.gguf --device h200 --weights q4
expect 64 "engine.weights" decode-node --model x --weights=f8
grep -qF "one of: auto f16 bf16 fp8" "$tmp/err" || { echo "engine.weights: the names are not said"; failures=$((failures + 1)); }
"$kvferry" size --layers 32 --kv-heads 32 --head-dim 128 >/dev/full 2>"$tmp/err"
[ $? = 1 ] || { echo "a full disk looks like success"; failures=$((failures + 1)); }

[ $failures = 0 ] && echo "all held"
exit $((failures > 0))
