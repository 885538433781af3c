#!/bin/sh
# selftest.sh <kvferry-sim> <kvferry-sim-mutants>: what a failing seed is good for. A planted mistake is found, its seed is cut down to a
# small script, the script fails again (and passes over the cores as they are), and stops under a debugger at the event that is asked for.
# The trace hash depends neither on the number of jobs nor on whether a plan comes from a seed or from its text.
set -eu
sim=$1
mutants=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*"; exit 1; }

# A commit that comes again is committed again: needs messages that come twice.
"$mutants" --mutant xfer.3 --seeds 3000 --jobs 1 >hunt && fail "the planted mistake is not found"
seed=$(sed -n 's/^FAILED seed \([0-9]*\) .*/\1/p' hunt | head -1)
[ -n "$seed" ] || fail "the failing seed is not named"
grep -q "^# seed $seed: " hunt || fail "a failing hunt prints no script"
"$mutants" --mutant xfer.3 --shrink "$seed" --out small || fail "cutting down failed"
cat small
requests=$(grep -c '^request ' small)
faults=$(grep -c '^fault ' small || true)
[ "$requests" -le 4 ] && [ "$faults" -le 3 ] || fail "not small: $requests requests, $faults faults"
"$mutants" --mutant xfer.3 --script small >again && fail "the small script passes"
grep '^FAILED' again
"$sim" --script small || fail "the script fails over the cores as they are"

status=0
"$sim" --seed 1 --break-at 20 >/dev/null 2>&1 || status=$?
[ "$status" = 133 ] || fail "--break-at: status $status, expected SIGTRAP"

a=$("$sim" --seeds 40 --jobs 1 | head -1)
b=$("$sim" --seeds 40 --jobs 3 | head -1)
[ "$a" = "$b" ] || fail "jobs change the trace: $a, $b"

for seed in 5 77 123; do
    "$sim" --print $seed >plan
    "$sim" --script plan --verbose | grep ' ms  ' >from_text
    "$sim" --seed $seed --verbose | grep ' ms  ' >from_seed
    cmp from_text from_seed || fail "seed $seed: its text plays differently"
done
echo "all as it should be"
