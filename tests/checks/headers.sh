#!/bin/sh
# headers.sh <C compiler> [<C++ compiler>]: each public header of the tree in the current directory compiles alone, as C11 and, where there
# is a compiler for it, as C++. Exit status 1 if one does not.
set -eu
cc=$1
cxx=${2:-}
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headers=$("$here"/list_sources.sh | grep -E '(^|/)include/kvf/[^/]*\.h$' || true)
[ -n "$headers" ] || { echo "no public headers found"; exit 1; }
includes=$(printf '%s\n' "$headers" | sed 's|/kvf/[^/]*$||' | LC_ALL=C sort -u | sed 's|^|-I|')
flags="-fsyntax-only -Wall -Wextra -Werror -D_GNU_SOURCE"
bad=0
n=0
for h in $headers; do
    n=$((n + 1))
    # Included twice: the guard is part of the promise.
    printf '#include "kvf/%s"\n#include "kvf/%s"\n' "${h##*/}" "${h##*/}" >"$work/one.c"
    $cc -std=c11 -Wstrict-prototypes $flags $includes "$work/one.c" || { echo "$h: does not compile alone as C11"; bad=1; }
    [ -n "$cxx" ] || continue
    cp "$work/one.c" "$work/one.cc"
    $cxx -std=c++17 $flags $includes "$work/one.cc" || { echo "$h: does not compile alone as C++"; bad=1; }
done
echo "$n public headers, C11${cxx:+ and C++}"
exit $bad
