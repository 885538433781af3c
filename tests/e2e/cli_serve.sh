#!/usr/bin/env bash
# `serve` from the outside: its ready line, its children, commands against it, a killed child, a clean end.
# Usage: cli_serve.sh PATH-OF-KVFERRY
set -u
kvferry=$1
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$model" ] || { echo "skip: no $model"; exit 77; }
tmp=$(mktemp -d)
server=
trap '[ -n "$server" ] && kill -9 "$server" 2>/dev/null; rm -rf "$tmp"' EXIT
unset KVFERRY_ROUTER KVFERRY_ADMIN KVFERRY_MODEL KVFERRY_CONFIG KVFERRY_THREADS
die() { echo "$*"; tail -5 "$tmp/log" | cut -c1-300; exit 1; }

# What it says comes through FIFOs: reading them is the waiting.
mkfifo "$tmp/out" "$tmp/err" "$tmp/copy"
TMPDIR=$tmp XDG_RUNTIME_DIR='' "$kvferry" serve --model "$model" --listen 127.0.0.1:0 --kv-memory 64MiB >"$tmp/out" 2>"$tmp/err" &
server=$!
exec 3<"$tmp/out" 4<"$tmp/err" 5<>"$tmp/copy"
tee "$tmp/log" <&4 >"$tmp/copy" &
read -r line <&3 || { sed 's/^/  /' "$tmp/log"; die "no ready line"; }
[[ $line =~ ^ready\ grpc=(127\.0\.0\.1:[0-9]+)\ admin=(127\.0\.0\.1:[0-9]+)$ ]] || die "not a ready line: $line"
grpc=${BASH_REMATCH[1]} admin=${BASH_REMATCH[2]}

child() { # ROLE: the pid of the direct child whose command line names it
  local p
  for p in $(cat /proc/"$server"/task/"$server"/children); do
    tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep -q " $1 " && { echo "$p"; return; }
  done
}
if [ "$(nproc)" -gt 1 ]; then said='decode nodes, cores p0 [0-9].*, d0 [0-9].*, idle ones are lent'; else said='decode nodes, 1 threads each'; fi
grep -q "$said" "$tmp/log" || die "the division of cores is not in the log"
for role in router prefill-node decode-node; do [ -n "$(child $role)" ] || die "no child $role"; done
[ "$(stat -c %a "$tmp"/kvferry-*)" = 700 ] || die "the socket directory is not private"

[ "$("$kvferry" health --router "$grpc")" = SERVING ] || die "not serving"
[ "$("$kvferry" tokenize --router "$grpc" 'Hello world')" = "$("$kvferry" tokenize --model "$model" 'Hello world')" ] || die "router and file tokenise differently"
[ "$("$kvferry" detokenize --router "$grpc" 19556,905)" = "Hello world" ] || die "detokenize"
for mode in always never; do
  "$kvferry" complete --router "$grpc" 'Once upon a time' -n 8 --temperature 0 --disaggregate $mode >"$tmp/$mode" 2>>"$tmp/log" || die "complete $mode: $?"
done
cmp -s "$tmp/always" "$tmp/never" || die "always and never differ"
"$kvferry" complete --router "$grpc" 'Once upon a time' -n 8 --temperature 0 --json >"$tmp/json" || die "complete --json"
grep -q '"reason":"FINISH_REASON_LENGTH"' "$tmp/json" || die "JSON: $(cat "$tmp/json")"
printf 'Say hi.\n/reset\nSay ho.\n' | "$kvferry" chat --router "$grpc" -n 4 --temperature 0 >"$tmp/chat" 2>>"$tmp/log" || die "conversation: $?"
[ "$(wc -l <"$tmp/chat")" -ge 2 ] || die "conversation: $(cat "$tmp/chat")"
"$kvferry" complete --router "$grpc" x --temperature=-1 >/dev/null 2>"$tmp/bad"
[ $? = 1 ] && grep -q temperature "$tmp/bad" || die "wrong input: $(cat "$tmp/bad")"
"$kvferry" nodes --router "$admin" | grep -q '^p0 .*ready' || die "nodes"
"$kvferry" top --once --router "$admin" | grep -q '^d0 ' || die "top"
"$kvferry" kv --router "$admin" --blocks | grep -q '^d0 ' || die "kv"
"$kvferry" nodes --router "$grpc" 2>&1 | grep -q 'admin=' || die "no hint at the other listener"

# Ctrl-C: the request is cancelled, the command ends with 1, and the cluster keeps nothing of it.
mkfifo "$tmp/stream"
"$kvferry" complete --router "$grpc" 'One two three' --ignore-eos --temperature 0 >"$tmp/stream" 2>"$tmp/said" &
client=$!
exec 6<"$tmp/stream"
read -r -n 1 -u 6 || die "no first character"
kill -INT $client
cat <&6 >/dev/null
wait $client
[ $? = 1 ] && grep -q cancelled "$tmp/said" || die "interrupt: $(cat "$tmp/said")"

before=$(child decode-node)
kill -9 "$before"
while read -r -t 120 -u 5 logged; do [[ $logged == *"d0 is back"* ]] && break; done
[[ $logged == *"d0 is back"* ]] || die "the decode node did not come back"
after=$(child decode-node)
[ -n "$after" ] && [ "$after" != "$before" ] || die "no new decode node"
"$kvferry" complete --router "$grpc" 'Once upon a time' -n 8 --temperature 0 --disaggregate always >"$tmp/again" 2>>"$tmp/log" || die "after the kill: $?"
cmp -s "$tmp/always" "$tmp/again" || die "after the kill the answer differs"
"$kvferry" audit --router "$admin" >"$tmp/audit" || die "audit: $(cat "$tmp/audit")"

# TERM while a stream runs: the stream goes on to its end, then all end.
children=$(cat /proc/"$server"/task/"$server"/children)
"$kvferry" complete --router "$grpc" 'One two three' -n 60 --ignore-eos --temperature 0 --stats >"$tmp/stream" 2>"$tmp/said" &
client=$!
exec 6<"$tmp/stream"
read -r -n 1 -u 6 || die "no first character"
kill -TERM "$server"
cat <&6 >/dev/null
wait $client || die "the running stream was cut: $(cat "$tmp/said")"
grep -q ' 60 new' "$tmp/said" || die "the running stream was cut: $(cat "$tmp/said")"
wait "$server"
status=$?
server=
[ $status = 0 ] || die "TERM: exit $status"
for p in $children; do [ ! -e "/proc/$p" ] || die "process $p is left"; done
ls -d "$tmp"/kvferry-* >/dev/null 2>&1 && die "the socket directory is left"
echo "all held"
