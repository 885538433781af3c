#!/usr/bin/env bash
# Our engine and llama.cpp on the same file, the same cores, in one run, alternating, best of each; prints both and the ratios.
#   tests/bench/engine_vs_llamacpp.sh [THREADS] [ROUNDS]
# Needs llama-cpp-python in a Python of its own: KVF_LLAMACPP_PYTHON, else ~/.cache/kvf-llamacpp/bin/python (it is measured beside us and
# is no part of the product). Says so and exits 77 where it is absent.
set -euo pipefail
cd "$(dirname "$0")/../.."
threads=${1:-2} rounds=${2:-3}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
python=${KVF_LLAMACPP_PYTHON:-$HOME/.cache/kvf-llamacpp/bin/python}
[ -x build/kvferry ] && [ -f "$model" ] || {
  echo "build/kvferry or $model is missing: run scripts/demo first"
  exit 77
}
"$python" -c 'import llama_cpp' 2>/dev/null || {
  echo "no llama-cpp-python in $python: python3 -m venv DIR && DIR/bin/pip install llama-cpp-python, then KVF_LLAMACPP_PYTHON=DIR/bin/python"
  exit 77
}

peer() {
  "$python" - "$model" "$threads" 2>/dev/null <<'P'
import ctypes, random, sys, time
import llama_cpp as L

quiet = L.llama_log_callback(lambda level, text, user: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
L.llama_backend_init()
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
rng = random.Random(1)

def context(tokens, sequences):
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = tokens, 2048, 512, sequences
    p.n_threads = p.n_threads_batch = int(sys.argv[2])
    p.flash_attn_type = 1
    return L.llama_init_from_model(model, p)

def decode(ctx, rows):
    b = L.llama_batch_init(len(rows), 0, 1)
    for i, (position, sequence, logits) in enumerate(rows):
        b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = rng.randrange(100, vocab), position, 1, logits
        b.seq_id[i][0] = sequence
    b.n_tokens = len(rows)
    assert L.llama_decode(ctx, b) == 0
    L.llama_batch_free(b)

ctx, best = context(512, 1), 0
for _ in range(3):
    L.llama_memory_clear(L.llama_get_memory(ctx), True)
    t = time.perf_counter()
    decode(ctx, [(i, 0, int(i == 511)) for i in range(512)])
    best = max(best, 512 / (time.perf_counter() - t))
print('prefill', best)
L.llama_free(ctx)
for batch in (1, 16):
    ctx, best = context(512 * batch, batch), 0
    for s in range(batch): decode(ctx, [(i, s, 0) for i in range(256)])
    for r in range(3):
        t = time.perf_counter()
        for k in range(16): decode(ctx, [(256 + 16 * r + k, s, 1) for s in range(batch)])
        best = max(best, 16 * batch / (time.perf_counter() - t))
    print(f'decode{batch}', best)
    L.llama_free(ctx)
P
}
ours() {
  build/kvferry bench engine --model "$model" --threads "$threads" --prefill 512 --batch 1,16 --context 256 |
    awk '$1 == "prefill" { print "prefill", $5 } $1 == "decode" { print "decode" $3, $5 }'
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for ((r = 0; r < rounds; r++)); do
  ours | sed 's/^/kvferry /' >>"$log"
  peer | sed 's/^/llama.cpp /' >>"$log"
done
awk -v t="$threads" -v r="$rounds" '
  { k = $1 " " $2; if ($3 > best[k]) best[k] = $3; if (!(k in least) || $3 < least[k]) least[k] = $3 }
  END {
    printf "%d threads, %d rounds each, tokens/s: best (least)\n%-22s %18s %18s %8s\n", t, r, "", "kvferry", "llama.cpp", "ratio"
    n = split("prefill decode1 decode16", kinds, " ")
    names["prefill"] = "prefill 512"; names["decode1"] = "decode batch 1"; names["decode16"] = "decode batch 16"
    for (i = 1; i <= n; i++) {
      a = "kvferry " kinds[i]; b = "llama.cpp " kinds[i]
      printf "%-22s %8.1f (%7.1f) %8.1f (%7.1f) %7.2fx\n", names[kinds[i]], best[a], least[a], best[b], least[b], best[a] / best[b]
    }
  }' "$log"
