"""llama.cpp through llama-cpp-python's low-level API, for tests/bench/compare; runs in a Python that has it.
compare_peer.py measure FILE THREADS PREFILLS BATCHES CONTEXT REPETITIONS   lists as "512,2048"; "-" is none
compare_peer.py quantise FROM TO FORMAT        another format of the same model: its speed counts, not its words
compare_peer.py info                           version and the instructions it was built for
Prints "prefill N TOKENS_PER_S" and "decode BATCH TOKENS_PER_S", best of the repetitions."""
import ctypes
import random
import sys
import time

import llama_cpp as L

STEPS, CHUNK = 12, 2048
quiet = L.llama_log_callback(lambda level, text, user: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
L.llama_backend_init()


def numbers(text):
    return [] if text == "-" else [int(v) for v in text.split(",")]


class Peer:
    def __init__(self, path, threads):
        self.model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
        if not self.model:
            sys.exit(f"{path}: llama.cpp cannot read it")
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.threads = threads
        self.rng = random.Random(1)

    def context(self, tokens, sequences):
        p = L.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = tokens, CHUNK, 512, sequences
        p.n_threads = p.n_threads_batch = self.threads
        p.flash_attn_type = 1
        p.kv_unified = False
        self.ctx = L.llama_init_from_model(self.model, p)

    def run(self, rows):  # (position, sequence, wants logits)
        b = L.llama_batch_init(len(rows), 0, 1)
        for i, (position, sequence, logits) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = self.rng.randrange(100, self.vocab), position, 1, logits
            b.seq_id[i][0] = sequence
        b.n_tokens = len(rows)
        t = time.perf_counter()
        assert L.llama_decode(self.ctx, b) == 0
        L.llama_synchronize(self.ctx)
        t = time.perf_counter() - t
        L.llama_batch_free(b)
        return t

    def prefill(self, count, repetitions):
        self.context(max(count, 512), 1)
        times = []
        for _ in range(repetitions + 1):  # the first is the warm-up
            L.llama_memory_clear(L.llama_get_memory(self.ctx), True)
            times.append(sum(self.run([(i, 0, int(i == count - 1)) for i in range(at, min(count, at + CHUNK))])
                             for at in range(0, count, CHUNK)))
        L.llama_free(self.ctx)
        return count / min(times[1:])

    def decode(self, batch, context, repetitions):
        each = -(-(context + STEPS * (repetitions + 1)) // 256) * 256
        self.context(each * batch, batch)
        self.run([(i, 0, 0) for i in range(context)])
        for s in range(1, batch):  # one prompt's keys and values for all of them, copied, as our benchmark does
            L.llama_memory_seq_cp(L.llama_get_memory(self.ctx), 0, s, -1, -1)
        times, position = [], context
        for _ in range(repetitions + 1):
            spent = 0
            for _ in range(STEPS):
                spent += self.run([(position, s, 1) for s in range(batch)])
                position += 1
            times.append(spent)
        L.llama_free(self.ctx)
        return STEPS * batch / min(times[1:])


def quantise(source, target, name):
    p = L.llama_model_quantize_default_params()
    p.ftype = getattr(L, f"LLAMA_FTYPE_MOSTLY_{name}")
    p.allow_requantize = True
    p.nthread = 2
    return L.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(p))


def main(argv):
    if argv[1] == "info":
        print(L.__version__, L.llama_print_system_info().decode())
    elif argv[1] == "quantise":
        return quantise(*argv[2:5])
    else:
        peer = Peer(argv[2], int(argv[3]))
        for n in numbers(argv[4]):
            print("prefill", n, peer.prefill(n, int(argv[7])), flush=True)
        for n in numbers(argv[5]):
            print("decode", n, peer.decode(n, int(argv[6]), int(argv[7])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
