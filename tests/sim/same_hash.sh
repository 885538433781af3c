#!/bin/sh
# same_hash.sh <kvferry-sim> <source dir>: the same seeds give the same trace when everything is built by another compiler, without
# optimisation and with the undefined-behaviour sanitizer.
set -eu
sim=$1
root=$2
command -v clang >/dev/null || { echo "skipped: no clang"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
includes=""
for d in base proto/msg kvcache kvtransfer prefill-node decode-node node/core router/core; do includes="$includes -I$d/include -I$d/src"; done
sources="$(ls tests/sim/*.c | grep -v '/mutants.c') $(ls kvcache/src/*.c kvtransfer/src/core_*.c node/core/src/*.c router/core/src/*.c)"
sources="$sources $(ls prefill-node/src/*.c decode-node/src/*.c proto/msg/src/*.c) base/src/status.c base/src/hash.c"
# shellcheck disable=SC2086
clang -std=c11 -D_GNU_SOURCE -O0 -fsanitize=undefined -fno-sanitize-recover=all $includes -Itests/sim $sources -o "$work/sim" \
    -Wl,--wrap=kvf_assert_failed -Wl,--wrap=kvf_hash128_of $(pkg-config --libs libxxhash libisal libcrypto)
a=$("$sim" --seeds 60 --jobs 1 | head -1)
b=$("$work/sim" --seeds 60 --jobs 1 | head -1)
echo "$a"
echo "$b (clang -O0)"
[ "$a" = "$b" ]
