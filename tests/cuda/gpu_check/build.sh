#!/usr/bin/env bash
# build.sh FOLDER     the programs of scripts/gpu-check, by nvcc and the C compilers alone. KVF_GPU_ARCHS: "80 90".
# build.sh --syntax   only whether the host's part would compile (a test, so that it does not rot)
set -euo pipefail
syntax=0
[ "$1" != --syntax ] || { syntax=1 && set -- "$(mktemp -d)" && trap 'rmdir "$1"' EXIT; }
folder=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/../../.."
nvcc=${NVCC:-nvcc} here=tests/cuda/gpu_check
read -ra archs <<<"${KVF_GPU_ARCHS:-80 90}"
toolkit=${KVF_CUDA_TOOLKIT:-}
[ -n "$toolkit" ] || toolkit=$(dirname "$(dirname "$(command -v "$nvcc")")")
rm -f "$folder"/*.o # of an older list of files
gencode=()
for a in "${archs[@]}"; do gencode+=("-gencode=arch=compute_$a,code=[sm_$a,compute_$a]"); done

common="-Ibase/include -Ikernels/include -Ikernels/quant/include -Ikernels/src -Ikernels/cuda/include -Ikernels/cuda -Iengine/sampler/include"
c="${CC:-gcc} -std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -fno-strict-aliasing $common -isystem $toolkit/include -c"
# Vector and half types alias each other in tests, as nvcc allows.
cxx="${CXX:-g++} -std=c++17 -O2 -ffp-contract=off -fno-strict-aliasing -Wno-psabi -I$here/shim -Itests/cuda -Itests/cuda/emu $common -isystem $toolkit/include -c"
# The product's own launches, for the plugin that the engine opens.
plain="$nvcc -std=c++17 -O3 ${gencode[*]} -Xcompiler=-fPIC,-fvisibility=hidden,-fno-threadsafe-statics,-fno-exceptions $common -c"
engine="$c -fPIC -Ibase/device/include -Iengine/gguf/include -Iengine/forward/include -Iengine/backend/include -Iengine/cuda/include"
lanes="$c -Ibase/device/include -Ibase/os/include -Ikvtransfer/include -Ikvtransfer/src"
cu="$nvcc -std=c++17 -O3 ${gencode[*]} -DKVF_LAUNCH_WATCHED -Itests/cuda $common -c"

{
  [ $syntax = 1 ] || for f in rows qkv decode prefill pages quant sample product8; do echo "$cu kernels/cuda/$f.cu -o $folder/$f.o"; done
  [ $syntax = 1 ] || echo "$cu tests/cuda/mma_tile.cu -o $folder/mma_tile.o"
  for f in mma rows decode prefill pages quant sample product8; do echo "$cxx tests/cuda/test_$f.cpp -o $folder/test_$f.o"; done
  for f in device bench; do echo "$cxx $here/$f.cpp -o $folder/gpu_$f.o"; done
  echo "$c $here/rows.c -o $folder/gpu_rows.o"
  for f in kernels/src/pack kernels/src/detect kernels/src/rope_table kernels/ref/ref kernels/quant/src/quant kernels/quant/src/half \
    engine/sampler/src/sample engine/sampler/src/score engine/sampler/src/check engine/sampler/src/math base/src/status \
    kernels/cuda/gemm $here/crc; do
    echo "$c $f.c -o $folder/c_${f//\//_}.o"
  done
  [ $syntax = 1 ] || for f in rows qkv decode prefill pages quant sample product8; do echo "$plain kernels/cuda/$f.cu -o $folder/p_$f.o"; done
  for f in kernels/cuda/plugin kernels/cuda/gemm; do echo "$engine $f.c -o $folder/p_${f##*/}.o"; done
  for f in engine/cuda/src/{choose,device,forward,graph,kept,step,warm,weights,workspace} engine/backend/src/{blocks,weights} engine/forward/src/runs \
    base/device/src/cuda_api tests/bench/device_engine $here/no_files; do
    echo "$engine $f.c -o $folder/e_${f//\//_}.o"
  done
  for f in $here/{transports,gpu,pair,clock} kvtransfer/src/{lane,lane_work}; do echo "$lanes $f.c -o $folder/t_${f//\//_}.o"; done
} | if [ $syntax = 1 ]; then sed 's| -c | -fsyntax-only |; s| -o [^ ]*$||'; else cat; fi |
  xargs -P "$(nproc)" -I{} sh -c '{} || { echo "failed: {}" >&2; exit 255; }'
[ $syntax = 0 ] || exit 0

link() { # link PROGRAM OBJECTS...
  local program=$folder/$1
  shift
  # The runtime inside: a machine with a driver alone can run them.
  "${CXX:-g++}" -static-libstdc++ -static-libgcc -o "$program" "${@/#/$folder/}" "$folder"/c_*.o -L"$toolkit/lib64" -lcudart_static -lrt -ldl -lm -lpthread
}
link check-mma test_mma.o mma_tile.o gpu_device.o
link check-rows test_rows.o rows.o qkv.o gpu_device.o
for f in decode prefill pages quant sample product8; do link "check-$f" "test_$f.o" "$f.o" gpu_device.o; done
link bench gpu_bench.o gpu_rows.o rows.o qkv.o decode.o prefill.o pages.o quant.o sample.o product8.o
# The engine finds the runtime as the product does, and the plugin beside itself.
"${CC:-gcc}" -shared -o "$folder/libkvferry-cuda.so" "$folder"/p_*.o -L"$toolkit/lib64" -lcudart -ldl
cp -L "$toolkit"/lib64/libcudart.so.1[23] "$folder"
"${CC:-gcc}" -o "$folder/device-engine" "$folder"/e_*.o "$folder"/c_{kernels_quant,kernels_src_rope,engine_sampler,base_src_status}*.o -ldl -lm
"${CC:-gcc}" -o "$folder/transports" "$folder"/t_*.o "$folder"/gpu_rows.o "$folder"/e_base_device_src_cuda_api.o \
  "$folder"/c_{base_src_status,tests_cuda_gpu_check_crc}.o -ldl -lpthread
cp scripts/gpu-check "$folder"
rm "$folder"/*.o
