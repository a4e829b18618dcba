"""Decoding by a Llama of 1.1 billion parameters with weights of 4 bits, one row, against llama.cpp on a file of the
same shape: rows of models.py. The peer runs as a process of this script in the Python that
$HOLON_BENCH_LLAMA_CPP_PYTHON names, which has PyPI's llama-cpp-python and gguf; without it the comparison is left out
(ratio null). Both sides have a group of 32 numbers for each scale of two bytes (llama.cpp: Q4_0), in the product of the
logits too, and random numbers: what a token costs does not depend on them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TURNS, PROMPT, NEW = 3, 16, 40
LAYERS, WIDTH, HIDDEN, HEADS, KV_HEADS, VOCABULARY, POSITIONS = 22, 2048, 5632, 32, 4, 32000, 512


def ours(formats):
    """Seconds of a token for each format."""
    import holon as flow

    flow.manual_seed(0)
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": False,
    }

    class Clock:
        def __init__(self):
            self.times = []

        def __call__(self, step, tokens):
            self.times.append(time.perf_counter())

    found = {}
    prompt = flow.arange(PROMPT).reshape(1, PROMPT)
    for name in formats:
        model = flow.models.from_config(config, dtype=flow.bfloat16).eval()
        model.quantize(4, lm_head=True, format=name)
        clock = Clock()
        options = {"eos_token_id": [], "cache_implementation": "static"}
        model.generate(prompt, max_new_tokens=NEW, streamer=clock, **options)
        found[name] = [b - a for a, b in zip(clock.times[1:], clock.times[2:])]  # the first compiles
    return found


def write_gguf(path):
    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    w = gguf.GGUFWriter(path, "llama")
    w.add_vocab_size(VOCABULARY)
    w.add_context_length(POSITIONS)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(HIDDEN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_rope_dimension_count(WIDTH // HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    # What makes a tokenizer of llama.cpp's: nothing is tokenized.
    w.add_tokenizer_model("llama")
    w.add_token_list(
        ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *map(str, range(VOCABULARY - 259))]
    )
    w.add_token_scores([0.0] * VOCABULARY)
    w.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])

    def product(name, rows, columns):
        # Blocks of Q4_0: a float16 scale, then 16 bytes.
        blocks = random.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
        blocks[..., :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        w.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def norm(name):
        w.add_tensor(name, np.ones(WIDTH, np.float32))

    kv = WIDTH // HEADS * KV_HEADS
    product("token_embd.weight", VOCABULARY, WIDTH)
    product("output.weight", VOCABULARY, WIDTH)
    norm("output_norm.weight")
    for i in range(LAYERS):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", kv, WIDTH),
            ("attn_v", kv, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", HIDDEN, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ):
            product(f"blk.{i}.{name}.weight", rows, columns)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def theirs(path):
    import llama_cpp

    threads = int(os.environ["OMP_NUM_THREADS"])
    # The prompt goes token by token, too: it is not timed, and batches crash 0.3.36 on processors with AMX.
    sizes = {"n_ctx": POSITIONS, "n_batch": 1}
    model = llama_cpp.Llama(path, **sizes, n_threads=threads, n_threads_batch=threads, verbose=False)
    model.eval(list(range(PROMPT)))
    times = []
    for token in range(NEW - 1):
        start = time.perf_counter()
        model.eval([token])
        times.append(time.perf_counter() - start)
    return times[1:]


def measured(python, threads, *arguments):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run([python, __file__, *arguments], capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def rows(emit):
    """emit(name, value, unit, against, ratio) for each; a ratio above 1: more tokens than the peer."""
    peer = os.environ.get("HOLON_BENCH_LLAMA_CPP_PYTHON")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "q4_0.gguf")
        if peer:
            subprocess.run([peer, __file__, "--write", path], check=True)
        for threads in (1, 2):
            found, of_peer = {}, []
            for _ in range(TURNS):
                for name, times in measured(sys.executable, threads, "--ours", "int", "mxfp4").items():
                    found.setdefault(name, []).extend(times)
                if peer:
                    of_peer += measured(peer, threads, "--peer", path)
            for name, times in found.items():
                text = (
                    f"Llama 1.1B, decoding, {'4 bits' if name == 'int' else name}, {threads} thread{'s'[: threads - 1]}"
                )
                value = 1 / statistics.median(times)
                against = 1 / statistics.median(of_peer) if of_peer else None
                emit(
                    f"models: {text}",
                    value,
                    "tokens/s",
                    f"llama.cpp Q4_0, {against:.2f} tokens/s" if peer else None,
                    against and value / against,
                )


if __name__ == "__main__":
    if "--ours" in sys.argv:
        print(json.dumps(ours(sys.argv[2:])))
    elif "--write" in sys.argv:
        write_gguf(sys.argv[2])
    else:
        print(json.dumps(theirs(sys.argv[2])))
