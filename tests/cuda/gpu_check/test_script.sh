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
for name in mma rows quant pages decode prefill sample product8; do say check-$name 'exit 0'; done
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

run "all is well"
expect "0 2" 'ipc, bare copy of' "packed into the peer's slots" 'cuda_ipc lane, 128 KiB packed, sent, landed' 'one rank to itself, 16 channels' \
  'nccl lane, 128 KiB packed' 'nccl lane over sockets' 'written: ' '"name":"Fake 0"' '"check":"transports ipc","passed":true' '"rows":['
valid

# What only one program does from here on, to be quick.
say bench 'exit 2' && say device-engine 'exit 0'
run "a missed bar"
expect 2 '"check":"bench","passed":true'
run "two ranks on one GPU are refused" KVF_FAKE_CUDA_FAULTS=ncclCommInitRankConfig:1=5
expect 1 '"nccl-pair","skipped":"ncclCommInitRankConfig: invalid usage"' 'WRONG: transports nccl-self' # which is not refused: wrong
valid
run "no IPC in a container" KVF_FAKE_CUDA_FAULTS=cudaIpcOpenMemHandle:1=801
expect 2 'skipped: cudaIpcOpenMemHandle: operation not supported'
run "spoilt IPC" KVF_FAKE_CUDA_FAULTS=cudaIpcOpenMemHandle:1=1
expect 1 'WRONG: cudaIpcOpenMemHandle: invalid argument'
run "a device that breaks" KVF_FAKE_CUDA_FAULTS=kernel:3=sticky700
expect 1 'illegal memory access'
valid
mv "$folder/libnccl.so.2" "$work"
if ! ldconfig -p | grep -q 'libnccl.so.2 '; then
  run "no NCCL"
  expect 2 'skipped: no NCCL here' '"check":"transports nccl-self","passed":true'
fi
mv "$work/libnccl.so.2" "$folder"
say bench 'sleep 60'
run "the time is up" KVF_GPU_CHECK_S=6
expect 1 '"check":"bench","passed":false,"status":124' 'not run: the time is up'
valid
say check-rows 'exit 77'
say bench 'exit 0'
run "a check that is skipped is not a pass"
expect 1 '"check":"rows","passed":false,"status":77'
say check-mma 'exit 1'
run "wrong lanes of mma"
expect 1 'WRONG: mma'
say check-mma 'echo no GPU here; exit 77'
run "no GPU"
expect 77 'no GPU here'
echo "scripts/gpu-check: well"
