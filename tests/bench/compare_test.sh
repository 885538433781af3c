#!/usr/bin/env bash
# tests/bench/compare between programs that make up their figures: ratios, bars, exit codes, and that it skips without a peer.
set -u
compare=$(dirname "$0")/compare
command -v python3 >/dev/null || { echo "skip: no python3"; exit 77; }
grep -q -s -w avx2 /proc/cpuinfo || { echo "skip: no family of kernels that has bars on this CPU"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/build/engine/bench" "$tmp/cache/llamacpp-avx2/bin"
program() { # PATH: a script from stdin
  { echo '#!/bin/sh'; cat; } >"$1"
  chmod +x "$1"
}
program "$tmp/build/kvferry" <<'S'
test "$KVFERRY_CPU" = avx2 || test "$KVFERRY_CPU" = avx512-vnni || exit 1
echo '{"results":[{"kind":"prefill","tokens":512,"threads":1,"tokens_per_s":1000.0},{"kind":"decode","batch":1,"context":256,"threads":1,"tokens_per_s":130.0}]}'
S
program "$tmp/build/engine/bench/limits" <<'S'
printf 'kernels avx2\nweights 100000000\nread GB/s 20.0\nf32 GFLOP/s 200.0\ngemm GOP/s 150.0\n'
S
program "$tmp/build/engine/bench/shared_prefix" </dev/null
program "$tmp/cache/llamacpp-avx2/bin/python" <<S
case "\$2" in
import*) exit 0 ;;
info) echo "0 CPU : \$(cat $tmp/built)" ;;
*) printf 'prefill 512 400.0\ndecode 1 %s\n' "\$(cat $tmp/decode)" ;;
esac
S
: >"$tmp/model"
echo 'AVX2 = 1' >"$tmp/built"
bad=0
unset KVF_LLAMACPP_PYTHON KVF_VLLM_PYTHON
expect() { # WANTED_EXIT TEXT: of a run with the rest as options
  local want=$1 text=$2 got
  shift 2
  "$compare" --quick --no-build --family avx2 --threads 1 --build "$tmp/build" --cache "$tmp/cache" --model "$tmp/model" "$@" >"$tmp/out" 2>&1
  got=$?
  [ $got = "$want" ] && grep -q -F -e "$text" "$tmp/out" && return
  echo "wanted exit $want and \"$text\", got exit $got and:"
  cat "$tmp/out"
  bad=1
}
echo 100.0 >"$tmp/decode"
expect 0 '| decode batch 1, same file | 130 (130) tokens/s | 100 (100) | file | 1.30 | 1.3 | met |' --strict
expect 0 '| decode batch 1, reading the weights once | 13.0 (13.0) GB/s | 20.0 (20.0) | memory | 0.65 | 0.6 | met |' -o "$tmp/json"
grep -q '"ratio": 2.5' "$tmp/json" || { echo "no ratio of prefill in the JSON"; bad=1; }
echo 101.0 >"$tmp/decode"
expect 1 '| file | 1.29 | 1.3 | MISSED |' --strict
expect 0 '1 bars missed'
if grep -q -s -w avx512_vnni /proc/cpuinfo; then # vLLM is a format of the peer in this family only
  program "$tmp/vllm" <<'S'
case "$2" in
model) mkdir "$4" ;;
info) echo 1.2.3 ;;
measure) echo 'prefill 512 800.0' ;;
esac
S
  export KVF_LLAMACPP_PYTHON=$tmp/cache/llamacpp-avx2/bin/python
  wide=(--family avx512-vnni --vllm)
  KVF_VLLM_PYTHON=$tmp/vllm expect 0 '| prefill 512, peer in any format | 1,000 (1,000) tokens/s | 800 (800) | vLLM BF16 | 1.25 | 2 | MISSED |' "${wide[@]}"
  expect 0 '| 400 (400) | file | 2.50 | 2 | met |' "${wide[@]}"
  expect 0 'vLLM is left out: no vLLM in' "${wide[@]}"
fi
expect 77 'avx512' --family avx512-none
echo 'AVX2 = 1 | AVX512 = 1' >"$tmp/built"
expect 1 'was built with AVX-512'
expect 77 'no llama-cpp-python' --cache "$tmp/none"
exit $bad
