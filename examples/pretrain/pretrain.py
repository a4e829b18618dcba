"""Trains a Llama from the beginning on text files, on any number of ranks. --depth is the dial: width, heads, learning
rate, batch and number of steps follow from it.

    python examples/pretrain/pretrain.py RUN --text FILE... --depth 4
    python -m holon.distributed.launch --nproc_per_node 4 examples/pretrain/pretrain.py RUN --text FILE... --dp 2 --tp 2

RUN is a folder. At first the files become tokens there (tokens.bin, 16 bits each, read by memory mapping): bytes, or
the tokens of --tokenizer (tokenizer.json of PyPI's `tokenizers`). Each document ends with a token of its own; rows are
packed with documents, and attention stays within each. Checkpoints go to RUN/checkpoints: the same command continues
where a run was interrupted, also on other ranks. At the end RUN/model is a checkpoint that transformers reads.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np

import holon as flow
from holon import nn, optim
from holon.checkpoint import Checkpointer


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of tokens, checkpoints and the model")
    parser.add_argument("--text", nargs="+", type=Path, default=[], help="documents, read once")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; without it tokens are bytes")
    parser.add_argument("--depth", type=int, default=4, help="layers; all other sizes follow")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=8, help="rows that are computed at once, over all ranks")
    parser.add_argument("--batch-tokens", type=int, help="tokens of a step (default: grows with the depth)")
    parser.add_argument("--steps", type=int, help="default: 20 tokens for each parameter")
    parser.add_argument("--dp", type=int, help="groups that share the rows (default: what --tp leaves)")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share the heads, hidden units and vocabulary")
    parser.add_argument("--amp", action="store_true", help="products in bfloat16")
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--sample", type=int, default=64, help="tokens to write at the end")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if min(options.depth, options.length - 1, options.rows, options.evaluate_every, options.save_every) < 1:
        parser.error("--depth, --rows, --evaluate-every and --save-every are at least 1, --length is at least 2")
    options.dp = options.dp or max(1, flow.env.get_world_size() // options.tp)
    return options


def tokenize(options):
    """Writes RUN/tokens.bin and its description once, by rank 0. The last twentieth is for validation."""
    path = options.run / "tokens.bin"
    if flow.env.get_rank() == 0 and not (options.run / "tokens.json").exists():
        if not options.text:
            raise SystemExit(f"pretrain: {path} is not there. Name the documents to make it of with --text FILE...")
        options.run.mkdir(parents=True, exist_ok=True)
        tokenizer = None
        if options.tokenizer:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(options.tokenizer))
        end = tokenizer.get_vocab_size() if tokenizer else 256
        if end >= 2**16:
            raise SystemExit(f"pretrain: the tokenizer has {end} tokens; 16 bits hold {2**16 - 1} and the end's.")
        with open(path, "wb") as file:
            for name in options.text:
                data = name.read_bytes()
                ids = (
                    tokenizer.encode(data.decode("utf-8", "replace")).ids
                    if tokenizer
                    else np.frombuffer(data, np.uint8)
                )
                np.append(ids, end).astype(np.uint16).tofile(file)
        # Written last: with it the tokens are complete.
        (options.run / "tokens.json").write_text(json.dumps({"end": end, "vocabulary": end + 1}))
    flow.comm.barrier()
    tokens = np.memmap(path, np.uint16, "r")
    about = json.loads((options.run / "tokens.json").read_text())
    split = len(tokens) * 19 // 20
    if len(tokens) - split <= options.length:
        raise SystemExit(f"pretrain: {len(tokens)} tokens are too few for rows of {options.length}. Give more --text.")
    return tokens[:split], tokens[split:], about


def config_of(depth, length, vocabulary, tp):
    """The sizes that follow from the depth. What is split among ranks is a multiple of their number."""
    width = 64 * depth
    heads = max(1, depth)
    if heads % tp:
        raise SystemExit(f"pretrain: --depth {depth} gives {heads} heads, which --tp {tp} does not divide.")
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": (vocabulary + 63) // 64 * 64,
        "hidden_size": width,
        "intermediate_size": 64 * math.ceil(width * 8 / 3 / 64),
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": max(length, 256),
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
    }


def packed(tokens, starts, length, end):
    """Rows that begin at the given places: ids, and which document of the row each belongs to."""
    rows = np.stack([tokens[s : s + length] for s in starts]).astype(np.int64)
    ends = np.cumsum(rows == end, 1)
    return flow.tensor(rows), flow.tensor(ends - (rows == end))  # the end belongs to its document


class State:
    """What is saved besides model and optimizer: the draws of rows, the losses, and the mean of the parameters."""

    def __init__(self, model, seed, decay):
        self.rng, self.losses, self.validation, self.decay = np.random.default_rng(seed), [], [], decay
        self.model, self.mean = model, {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, step):
        decay = min(self.decay, (1 + step) / (10 + step))
        with flow.no_grad():
            for name, p in self.model.named_parameters():
                self.mean[name].lerp_(p, 1 - decay)

    def swap(self):
        """Exchanges the parameters and their mean."""
        with flow.no_grad():
            for name, p in self.model.named_parameters():
                now = p.detach().clone()
                p.copy_(self.mean[name])
                self.mean[name].copy_(now)

    def state_dict(self):
        rng = json.dumps(self.rng.bit_generator.state)
        return {"losses": self.losses, "validation": self.validation, "rng": rng, "mean": self.mean}

    def load_state_dict(self, state):
        self.losses, self.validation = list(state["losses"]), [list(pair) for pair in state["validation"]]
        self.rng.bit_generator.state = json.loads(state["rng"])
        with flow.no_grad():
            for name, mean in self.mean.items():
                mean.copy_(state["mean"][name].to_global(mean.placement, mean.sbp))  # of another layout perhaps


def learning_rate(step, steps, peak):
    """A warm-up over a twentieth of the steps, then half a cosine down to a tenth."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def evaluate(model, state, tokens, options, end, batches=8):
    """The loss of the averaged parameters on rows that cover the validation tokens evenly."""
    starts = np.linspace(0, len(tokens) - options.length, batches * options.rows).astype(np.int64)
    state.swap()
    model.eval()
    with flow.no_grad():
        losses = []
        for part in starts.reshape(batches, options.rows):
            ids, documents = packed(tokens, part, options.length, end)
            losses.append(model.loss(ids, labels=ids, document_ids=documents).item())
    model.train()
    state.swap()
    return float(np.mean(losses))


def main(argv=None):
    options = arguments(argv)
    first = flow.env.get_rank() == 0
    tokens, held_out, about = tokenize(options)
    end = about["end"]
    flow.manual_seed(options.seed)
    config = config_of(options.depth, options.length, about["vocabulary"], options.tp)
    model = flow.models.from_config({**config, "eos_token_id": end}, dp=options.dp, tp=options.tp)
    count = sum(p.numel() for p in model.parameters())
    micro = options.rows * options.length
    accumulate = max(1, round((options.batch_tokens or 4096 * options.depth) / micro))
    steps = options.steps or max(20, 20 * count // (accumulate * micro))
    peak = 3e-3 * (4 / options.depth) ** 0.5
    optimizer = optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=peak,
        betas=(0.9, 0.95),
    )
    state = State(model, options.seed, 0.999)
    checkpoints = Checkpointer(
        options.run / "checkpoints", asynchronous=True, model=model, optimizer=optimizer, state=state
    )
    found = checkpoints.restore()
    begin = found.step if found else 0
    if first:
        print(
            f"{count:,} parameters, {len(tokens):,} tokens, {steps} steps of {accumulate} x {micro} tokens, "
            f"{options.dp} x {options.tp} ranks (data x tensor parallel)" + (f", from step {begin}" if begin else ""),
            flush=True,
        )
    clock = time.monotonic()
    for step in range(begin, steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accumulate):
            starts = state.rng.integers(0, len(tokens) - options.length, options.rows)
            ids, documents = packed(tokens, starts, options.length, end)
            with flow.autocast("cpu", flow.bfloat16, enabled=options.amp):
                loss = model.loss(ids, labels=ids, document_ids=documents) / accumulate
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state.update(step)
        state.losses.append(total)
        done = step + 1
        if done % options.evaluate_every == 0 or done == steps:
            validation = evaluate(model, state, held_out, options, end)
            state.validation.append([done, validation])
            if first:
                rate = (done - begin) * accumulate * micro / (time.monotonic() - clock)
                print(f"step {done}: loss {total:.4f}, validation {validation:.4f}, {rate:,.0f} tokens/s", flush=True)
        if done % options.save_every == 0 or done == steps:
            checkpoints.save(done)
    checkpoints.wait()
    state.swap()
    model.eval()
    model.save_pretrained(options.run / "model")
    if first:
        np.savetxt(options.run / "losses.txt", state.losses, fmt="%.6f")
        np.savetxt(options.run / "validation.txt", state.validation, fmt=["%d", "%.6f"])
    prompt = flow.tensor(np.asarray(held_out[:8], np.int64)[None])
    room = min(options.sample, config["max_position_embeddings"] - prompt.shape[1])
    if room > 0:
        written = model.generate(
            prompt, max_new_tokens=room, do_sample=True, temperature=0.8, seed=options.seed, pad_token_id=end
        )
        if first:
            ids = [t for t in written[0].tolist() if t < end]
            if options.tokenizer:
                from tokenizers import Tokenizer

                print("a sample: " + Tokenizer.from_file(str(options.tokenizer)).decode(ids), flush=True)
            else:
                print("a sample: " + bytes(ids).decode("utf-8", "replace"), flush=True)
    return state.losses


if __name__ == "__main__":
    main()
