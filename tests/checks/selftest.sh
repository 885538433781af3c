#!/bin/sh
# selftest.sh <check_sources> <C compiler> <C++ compiler or ""> <nm>: each check is shown to fail. A small lawful tree passes; then one
# violation at a time is planted in it, and the check must say so, with the file and the line. Words that may not stand in a source are
# put together here.
set -eu
check=$1
cc=$2
cxx=$3
nm=$4
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
bad=0
planted=0

fresh() {
    rm -rf "$tree/t"
    mkdir -p "$tree/t/kvcache/src" "$tree/t/kvcache/include/kvf" "$tree/t/rpc/src" "$tree/t/node/core/src" "$tree/t/node/shell"
    cd "$tree/t"
    printf '/* A core: malloc(1), float and "time(0)" in a comment are fine. */\n#include <string.h>\nint kvf_kv_one(int x);\nint kvf_kv_one(int x) {\n    const char *text = "double // free(x)";\n    return x + (int)strlen(text) + 0x1e5;\n}\n' >kvcache/src/one.c
    printf '#ifndef KVF_ONE_H\n#define KVF_ONE_H\n#include <stdint.h>\nstruct kvf_one {\n    uint32_t free;\n};\n#endif\n' >kvcache/include/kvf/one.h
    printf '#include <grpc/grpc.h>\n' >rpc/src/call.c
    printf '# allowed\n' >allow.txt
}

# planted FILE LINE TEXT: the checker must fail and name this place with this text.
expect() {
    planted=$((planted + 1))
    if "$here"/list_sources.sh | "$check" allow.txt >out 2>&1; then
        echo "planted and not found: $3"
        bad=1
    elif ! grep -q "^$1:$2: .*$3" out; then
        echo "found, but not named as $1:$2 $3:"
        cat out
        bad=1
    fi
    rm -f out
}

plant() { # plant FILE CODE TEXT: CODE appended as the last line
    fresh
    [ -e "$1" ] || : >"$1"
    printf '%b\n' "$2" >>"$1"
    expect "$1" "$(grep -c '' "$1")" "$3"
}

fresh
"$here"/list_sources.sh | "$check" allow.txt >out || { echo "the lawful tree does not pass:"; cat out; bad=1; }

core=kvcache/src/one.c
plant $core 'void *kvf_x(void) { return malloc(3); }' 'does not call malloc'
plant $core 'void kvf_x(void *p) { free (p); }' 'does not call free'
plant $core 'long kvf_x(void) { return time(0); }' 'does not call time'
plant $core 'int kvf_x(void) { return rand(); }' 'does not call rand'
plant $core 'int kvf_x(void) { return pthread_self() != 0; }' 'has no pthread_self'
plant $core '#include <stdlib.h>' 'may not include stdlib.h'
plant $core '#  include <time.h>' 'may not include time.h'
plant $core '#include <sys/socket.h>' 'may not include sys/socket.h'
plant $core '#include <pthread.h>' 'may not include pthread.h'
plant $core '#include "kvf/os.h"' 'may not include kvf/os.h'
plant $core 'static float x;' 'has no float'
plant $core 'typedef double kvf_d;' 'has no double'
plant $core 'int kvf_y(void) { return (int)(3 * .5); }' 'no number like'
plant $core 'int kvf_y(void) { return (int)1e9; }' 'no number like 1e9'
plant $core '/* a */ int kvf_s(void) { return socket(1, 2, 3); } // b' 'does not call socket'
plant kvcache/include/kvf/one.h 'static inline int kvf_c(void) { return clock(); }' 'does not call clock'
plant node/core/src/a.c 'static double x;' 'has no double'
mkdir -p router
plant node/shell/a.c '#include <grpc/grpc.h>' 'gRPC header'
plant $core '#include "grpc/impl/codegen.h"' 'gRPC header'
plant node/shell/a.c '#include <cuda_runtime.h>' 'device header'
plant node/shell/a.c '#include <netinet/in.h>' 'network header'
plant node/shell/a.c "/* TO""DO later */" 'file an issue'
plant node/shell/README.md "X""XX" 'file an issue'
plant node/shell/run.sh "cd /wo""rk/main" 'one machine'
plant node/shell/a.c "static const char *p = \"/ro""ot/x\";" 'one machine'

long=$(printf '%0121d' 7)
plant node/shell/a.c "/* $long */" 'columns'
plant node/shell/a.c "/* $(printf '%0115d' 7)ééééé */" 'columns'
fresh
{ echo "/* $(printf '%0113d' 7)é */"; } >node/shell/a.c # 120 characters, more bytes
"$here"/list_sources.sh | "$check" allow.txt >out || { echo "120 characters do not pass:"; cat out; bad=1; }

fresh
echo 'columns node/shell/a.c - 2' >>allow.txt
for n in 0 2; do # a ceiling, needed or not
    i=0
    : >node/shell/a.c
    while [ $i -lt $n ]; do echo "/* $long */" >>node/shell/a.c; i=$((i + 1)); done
    "$here"/list_sources.sh | "$check" allow.txt >out || { echo "$n long lines of 2 allowed do not pass:"; cat out; bad=1; }
done
echo "/* $long */" >>node/shell/a.c
expect node/shell/a.c 1 'may only shrink'

long_function() { # long_function LINES
    echo 'int kvf_long(int a,'
    echo '    int b) {'
    i=2
    while [ $i -lt "$1" ]; do echo '    a++;'; i=$((i + 1)); done
    echo '}'
}
fresh
long_function 100 >node/shell/a.c
"$here"/list_sources.sh | "$check" allow.txt >out || { echo "100 lines do not pass:"; cat out; bad=1; }
fresh
long_function 101 >node/shell/a.c
expect node/shell/a.c 2 'function kvf_long: 101, the limit is 100'
fresh
long_function 110 >node/shell/a.c
echo 'function node/shell/a.c kvf_long 110' >>allow.txt
"$here"/list_sources.sh | "$check" allow.txt >out || { echo "the allow list does not allow:"; cat out; bad=1; }
long_function 111 >node/shell/a.c
expect node/shell/a.c 2 'may only shrink'
long_function 109 >node/shell/a.c
expect node/shell/a.c 2 'lower it there'
long_function 90 >node/shell/a.c
expect node/shell/a.c 0 'take it off'
fresh
i=0
while [ $i -le 900 ]; do echo 'int kvf_v;'; i=$((i + 1)); done >node/shell/a.c
expect node/shell/a.c 1 'file -: 901'

# Headers: one that needs another, one without a guard, one that is no C++.
plant_header() {
    fresh
    printf '%b\n' "$2" >kvcache/include/kvf/two.h
    planted=$((planted + 1))
    if "$here"/headers.sh "$cc" "$3" >out 2>&1; then
        echo "planted and not found: $1"
        bad=1
    elif ! grep -q 'kvcache/include/kvf/two.h: does not compile alone' out; then
        cat out
        bad=1
    fi
}
fresh
"$here"/headers.sh "$cc" "$cxx" >out 2>&1 || { echo "lawful headers do not pass:"; cat out; bad=1; }
plant_header "needs another" '#ifndef A\n#define A\nuint32_t kvf_a(void);\n#endif' ''
plant_header "no guard" 'struct kvf_twice {\n    int a;\n};' ''
[ -z "$cxx" ] || plant_header "no C++" '#ifndef A\n#define A\nint kvf_a(int class);\n#endif' "$cxx"

# Symbols.
plant_symbol() {
    fresh
    printf '%b\n' "$2" >x.c
    "$cc" -std=c11 -D_GNU_SOURCE -c x.c -o x.o
    rm -f libx.a
    ar rc libx.a x.o
    planted=$((planted + 1))
    if "$here"/symbols.sh "$nm" libx.a >out 2>&1; then
        [ "$1" = none ] || { echo "planted and not found: reference to $1"; bad=1; }
    elif ! grep -q "references $1\$" out; then
        echo "expected $1:"
        cat out
        bad=1
    fi
}
plant_symbol malloc '#include <stdlib.h>\nvoid *kvf_x(unsigned long n) { return malloc(n); }'
plant_symbol free '#include <stdlib.h>\nvoid kvf_x(void *p) { free(p); }'
plant_symbol clock_gettime '#include <time.h>\nint kvf_x(struct timespec *t) { return clock_gettime(CLOCK_MONOTONIC, t); }'
plant_symbol socket '#include <sys/socket.h>\nint kvf_x(void) { return socket(AF_INET, SOCK_STREAM, 0); }'
plant_symbol pthread_create '#include <pthread.h>\nint kvf_x(pthread_t *t, void *(*f)(void *)) { return pthread_create(t, 0, f, 0); }'
plant_symbol rand '#include <stdlib.h>\nint kvf_x(void) { return rand(); }'
plant_symbol kvf_os_now_ns 'long kvf_os_now_ns(void);\nlong kvf_x(void) { return kvf_os_now_ns(); }'
plant_symbol none '#include <string.h>\nint kvf_y(const char *);\nint kvf_x(const char *a) { return kvf_y(a) + (int)strlen(a); }'

cd "$here"
echo "$planted violations planted"
exit $bad
