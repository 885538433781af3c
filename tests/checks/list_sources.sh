#!/bin/sh
# list_sources.sh: the files of the tree in the current directory that the checks are about: what git knows, or, in an unpacked archive,
# everything but build folders. Golden data and fuzz corpora are data, not sources; links are followed by nobody.
set -eu
if [ -e .git ] && command -v git >/dev/null 2>&1; then
    # A file that git knows and somebody has just deleted is not there to be checked.
    git ls-files | while IFS= read -r f; do [ -f "$f" ] && [ ! -h "$f" ] && printf '%s\n' "$f"; done
else
    find . -type f -not -path './build*' -not -path './.git/*' -not -path './models/*' | sed 's|^\./||' | LC_ALL=C sort
fi | grep -v -e '^tests/golden/' -e '^tests/fuzz/corpus/' -e '^LICENSE$'
