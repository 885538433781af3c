#!/usr/bin/env bash
# test_script.sh BUILD ENGINE FAKES SCRIPT   scripts/gpu-check on the fakes: a folder as build.sh leaves it, in which `transports`, `bench` and
# `device-engine` are the programs of this build with toy sizes, and the checks of kernels (tests of their own here) say that all is well.
set -uo pipefail
build=$1 engine=$2 fakes=$3 script=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/copied # as on a machine that has nothing else
mkdir "$folder"
say() { printf '#!/bin/sh\n%s\n' "$2" >"$folder/$1" && chmod +x "$folder/$1"; }
for name in mma rows quant pages decode prefill sample product8; do
  say check-$name "echo '{\"check\":\"$name\",\"test\":\"all\",\"passed\":true}' >>\"\$KVF_GPU_CHECK_TESTS\"" # as shim/cmocka.h does
done
say bench "exec '$build/gpu-check-bench' --small \"\$@\""
say transports "exec '$build/gpu-check-transports' --small \"\$@\""
say device-engine "shift 2; exec '$engine' --shape tiny --prefill 40 --batches 1,3 --context 33 \"\$@\""
[ -x "$engine" ] || say device-engine 'exit 0'
cp "$fakes"/libcuda.so.1 "$fakes"/libcudart.so.13 "$fakes"/libnccl.so.2 "$fakes"/libkvferry-cuda.so "$script" "$folder"
unset LD_LIBRARY_PATH

bad=0
expect() { # expect STATUSES TEXTS...   of the last run: all is in what it printed or wrote
  local text wanted=$1
  shift
  [[ " $wanted " = *" $status "* ]] || { echo "$case: status $status, not $wanted" && bad=1; }
  for text in "$@"; do
    grep -qF -- "$text" "$work/said" "$work/json" || { echo "$case: it did not say: $text" && bad=1; }
  done
  [ $bad = 0 ] || { cat "$work/said" "$work/json" && exit 1; }
}
run() { # run CASE ENVIRONMENT...
  case=$1
  shift
  : >"$work/json"
  env "$@" "$folder/gpu-check" --json "$work/json" >"$work/said" 2>&1
  status=$?
}
valid() {
  if command -v python3 >/dev/null; then python3 -m json.tool "$work/json" >/dev/null || { echo "$case: no JSON" && cat "$work/json" && exit 1; }; fi
}

run "all is right, and the emulator misses bars"
expect 1 'ipc, bare copy of' "packed into the peer's slots" 'cuda_ipc lane, 128 KiB packed, sent, landed' 'one rank to itself, 16 channels' \
  'nccl lane, 128 KiB packed' 'nccl lane over sockets' 'written: ' '"name":"Fake 0"' '"check":"transports ipc","passed":true' '"rows":[' \
  'decode attention, 8-bit pages' 'prefill attention, 8-bit pages' 'fp8 product 64 rows' '"check":"product8","test":"all","passed":true' \
  'checks: 15 of 15 passed; tests of kernels: 8 of 8' 'MISSED: pack with CRC'
! grep -q 'failed:\|WRONG\|not run' "$work/said" || expect none
valid
[ ! -x "$engine" ] || for types in 'f16 weights, f16' 'fp8 weights, fp8'; do
  expect 1 "\"name\":\"engine, tiny, $types KV, prefill of 40\"" "\"name\":\"engine, tiny, $types KV, decode of 3 at context 33\""
done

# What only one program does from here on, to be quick.
row() { # row REACHED   of a bench
  printf '%s' "echo '{\"name\":\"pack\",\"value\":0.79,\"unit\":\"\",\"bar\":0.8,\"at_least\":true,\"reached\":$1}' >>\$2"
}
say bench "$(row true)" && say device-engine 'exit 0'
run "every bar is reached"
expect 0 'bars: 1 of 1 that were measured are reached' 'checks: 15 of 15 passed'
say bench "$(row false); exit 2"
run "a missed bar"
expect 1 '"check":"bench","passed":true' 'MISSED: pack: 0.79, bar 0.8' 'checks: 15 of 15 passed'
valid
say bench 'exit 0'
run "two ranks on one GPU are refused" KVF_FAKE_CUDA_FAULTS=ncclCommInitRankConfig:1=5
expect 1 '"nccl-pair","skipped":"ncclCommInitRankConfig: invalid usage"' 'WRONG: transports nccl-self' # which is not refused: wrong
valid
run "no IPC in a container" KVF_FAKE_CUDA_FAULTS=cudaIpcOpenMemHandle:1=801
expect 0 'not measured: ipc: cudaIpcOpenMemHandle' 'skipped: cudaIpcOpenMemHandle: operation not supported'
run "spoilt IPC" KVF_FAKE_CUDA_FAULTS=cudaIpcOpenMemHandle:1=1
expect 1 'WRONG: cudaIpcOpenMemHandle: invalid argument'
run "a device that breaks" KVF_FAKE_CUDA_FAULTS=kernel:3=sticky700
expect 1 'illegal memory access'
valid
mv "$folder/libnccl.so.2" "$work"
if ! ldconfig -p | grep -q 'libnccl.so.2 '; then
  run "no NCCL"
  expect 0 'skipped: no NCCL here' '"check":"transports nccl-self","passed":true'
fi
mv "$work/libnccl.so.2" "$folder"
say bench "KVF_FAKE_CUDA_FAULTS=kernel:40=hang exec '$build/gpu-check-bench' --small \"\$@\""
run "the time is up in a bench, which has told something" KVF_GPU_CHECK_S=6
expect 1 '"check":"bench","passed":false,"status":124' 'cut short: time: bench' '"name":"copy on the device' 'not run: time: engine fp8'
valid
say bench "$(row true)" && say transports 'echo null' && say device-engine 'sleep 60'
run "rates without a bar may want time" KVF_GPU_CHECK_S=2
expect 0 'engine f16: cut short: time' 'not run: time: engine fp8' 'bars: 1 of 1'
valid
say check-rows 'exit 77' && say device-engine 'exit 0'
run "a check that is skipped is not a pass"
expect 1 '"check":"rows","passed":false,"status":77' 'failed: rows: status 77'
say check-mma 'exit 1'
run "wrong lanes of mma"
expect 1 'WRONG: mma'
say check-mma 'echo no GPU here; exit 77'
run "no GPU"
expect 77 'no GPU here'
echo "scripts/gpu-check: well"
