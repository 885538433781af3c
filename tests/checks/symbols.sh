#!/bin/sh
# symbols.sh <nm> <library>...: libraries of pure cores reference nothing but what pure code needs: our own functions outside the shells'
# libraries, memory and string primitives, and what compilers and sanitizers put in. Whatever is not listed is a finding: malloc,
# clock_gettime, socket, pthread_create, rand and all their relatives.
set -eu
nm=$1
shift
allowed='^(kvf_[a-z0-9_]+|mem(cpy|set|move|cmp|chr)|bcmp|str(len|cmp|ncmp|nlen|chr|spn|cspn)|v?snprintf|__v?snprintf_chk|__(asan|ubsan|tsan|sanitizer|gcov|llvm|cov|sancov|stack_chk)_?[A-Za-z0-9_]*|_GLOBAL_OFFSET_TABLE_|__(mem(cpy|set|move)|str[a-z]*)_chk|__start___sancov[a-z_0-9]*|__stop___sancov[a-z_0-9]*|__popcount[a-z0-9]*|__[a-z]*div[a-z0-9]*)$'
shells='^kvf_(os|rpc|loop|mailbox|thread|sock)_'
bad=0
for lib in "$@"; do
    [ -f "$lib" ] || { echo "$lib: not there"; bad=1; continue; }
    # Names that a member of the same library defines are its own business.
    defined=$("$nm" -g --defined-only "$lib" | awk 'NF == 3 { print $3 }' | LC_ALL=C sort -u)
    [ -n "$defined" ] || { echo "$lib: defines nothing"; bad=1; continue; }
    undefined=$("$nm" -u "$lib" | awk '$1 == "U" || $1 == "w" { print $2 }' | LC_ALL=C sort -u)
    for symbol in $undefined; do
        printf '%s\n' "$defined" | grep -qx -- "$symbol" && continue
        if printf '%s\n' "$symbol" | grep -qE "$shells" || ! printf '%s\n' "$symbol" | grep -qE "$allowed"; then
            echo "${lib##*/}: a pure core references $symbol"
            bad=1
        fi
    done
    echo "${lib##*/}: $(printf '%s\n' "$undefined" | grep -c . || true) outside names looked at"
done
exit $bad
