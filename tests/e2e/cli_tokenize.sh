#!/usr/bin/env bash
# tokenize and detokenize by a model file. Usage: cli_tokenize.sh PATH-OF-KVFERRY
set -u
kvferry=$1
model=tests/golden/tiny/llama.gguf
real=models/SmolLM2-135M-Instruct.Q4_1.gguf
unset KVFERRY_ROUTER KVFERRY_MODEL
failures=0
same() { # WHAT GOT WANT
  [ "$2" = "$3" ] && return
  echo "$1: \"$2\", want \"$3\""
  failures=$((failures + 1))
}
# The tiny vocabulary: bytes in the GPT-2 order, then merges; 268 and 269 are <|im_start|> and <|im_end|>.
ids=$("$kvferry" tokenize --model "$model" --add-bos no 'Zq!')
same "round trip" "$("$kvferry" detokenize --model "$model" "$ids")" "Zq!"
same "stdin" "$(printf 'Zq!' | "$kvferry" tokenize --model "$model" --add-bos no -)" "$ids"
same "environment" "$(KVFERRY_MODEL=$model "$kvferry" tokenize --add-bos no 'Zq!')" "$ids"
same "ids apart" "$("$kvferry" detokenize --model "$model" $(echo "$ids" | tr -d '[]' | tr , ' '))" "Zq!"
same "special" "$("$kvferry" tokenize --model "$model" --add-bos no --special '<|im_end|>' | grep -c ,)" 0
plain=$("$kvferry" tokenize --model "$model" --add-bos no '<|im_end|>')
[[ $plain == *,* ]] || same "a user's text is no control token" "$plain" "several ids"
same "raw bytes" "$("$kvferry" detokenize --model "$model" --raw "$ids" | od -An -tx1 | tr -d ' \n')" "5a7121"
"$kvferry" detokenize --model "$model" 999999 2>/dev/null
same "id out of range" $? 1
printf '\xff' | "$kvferry" tokenize --model "$model" - >/dev/null 2>&1
same "not UTF-8" $? 1
same "empty" "$("$kvferry" tokenize --model "$model" --add-bos no '')" "[]"
if [ -f $real ]; then
  same "golden" "$("$kvferry" tokenize --model $real 'a ')" "[81,216]"
  same "golden newline" "$("$kvferry" tokenize --model $real $'\r\n')" "[2738]"
  same "control" "$("$kvferry" tokenize --model $real --special '<|im_end|>')" "[2]"
fi
[ $failures = 0 ] && echo "all held"
exit $((failures > 0))
