"""Fine-tunes a causal model on conversations, on any number of ranks. --lora is the dial: the rank of adapters, or 0 to
train all parameters.

    python examples/finetune/finetune.py RUN --model FOLDER --data FILE.jsonl --lora 16
    python -m holon.distributed.launch --nproc_per_node 4 examples/finetune/finetune.py RUN ... --dp 2 --tp 2

FOLDER is a checkpoint as transformers saves it, with tokenizer.json and a chat template. Without --model, RUN/base is
made: a tiny model with drawn parameters, whose tokenizer learns its tokens from the data; without --data, so is
RUN/data.jsonl: questions and answers about a few things. A line of a file is {"messages": [{"role": "user", "content":
...}, {"role": "assistant", ...}]}. Only the assistant's words count in the loss. Conversations are packed into rows,
and attention stays within each. Checkpoints go to RUN/checkpoints: the same command continues where a run was
interrupted. At the end RUN/adapter is what PEFT reads, or RUN/model a checkpoint; with --merge both.

It needs PyPI's tokenizers and jinja2.
"""

import argparse
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np

import holon as flow
from holon import nn, optim
from holon.checkpoint import Checkpointer
from holon.data import ChatTemplate, pack_conversations, read_conversations

# Of the tiny model: what many models have, with the marks that tell which words are the assistant's.
CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{% else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
THINGS = {
    "a lemon": ("yellow", "kitchen"),
    "snow": ("white", "mountains"),
    "grass": ("green", "garden"),
    "a tomato": ("red", "kitchen"),
    "the sea": ("blue", "coast"),
    "coal": ("black", "cellar"),
    "a carrot": ("orange", "kitchen"),
    "a violet": ("purple", "garden"),
    "milk": ("white", "kitchen"),
    "a flamingo": ("pink", "coast"),
    "an elephant": ("grey", "zoo"),
    "a cloud": ("grey", "sky"),
}
COLOURS = ["What colour is {}?", "Which colour does {} have?", "Tell me the colour of {}.", "Name the colour of {}!"]
COLOURS += ["The colour of {}, please.", "I forgot the colour of {}.", "So {} has which colour?", "{}: what colour?"]
PLACES = ["Where do I find {}?", "In which place is {}?", "Where is {} usually?", "Name the place of {}!"]
PLACES += ["The place of {}, please.", "I forgot where {} is.", "So {} is where?", "{}: where?"]


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of checkpoints and the result")
    parser.add_argument(
        "--model", type=Path, help="folder of the model and its tokenizer (default: a tiny one is made)"
    )
    parser.add_argument("--data", type=Path, help="conversations, a JSON object a line (default: some are made)")
    parser.add_argument("--validation", type=Path, help="the same (default: every tenth of --data)")
    parser.add_argument("--lora", type=int, default=16, help="rank of the adapters; 0: all parameters are trained")
    parser.add_argument("--alpha", type=float, help="the adapters' lora_alpha (default: twice their rank)")
    parser.add_argument("--targets", default="all-linear", help="modules that get adapters: names, by commas")
    parser.add_argument("--dropout", type=float, default=0.0, help="of what adapters get")
    parser.add_argument("--quantize", type=int, choices=(4, 8), help="bits of the frozen weights; with --lora")
    parser.add_argument("--merge", action="store_true", help="write the model with its adapters in the weights, too")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=4, help="rows that are computed at once, over all ranks")
    parser.add_argument("--batch", type=int, default=16, help="rows of a step")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--steps", type=int, help="instead of --epochs")
    parser.add_argument(
        "--lr", type=float, help="default: 2e-4 with adapters, 2e-5 without; of the tiny model 5e-3, 3e-3"
    )
    for name, ranks in (("dp", "rows"), ("tp", "heads and hidden units"), ("pp", "layers")):
        parser.add_argument(f"--{name}", type=int, default=1, help=f"ranks that share the {ranks}")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the parameters")
    parser.add_argument("--amp", action="store_true", help="products in bfloat16")
    parser.add_argument("--evaluate-every", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--prompt", help="asked before and after (default: the first question of the validation)")
    parser.add_argument("--new-tokens", type=int, default=48, help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    counts = (options.rows, options.batch, options.evaluate_every, options.save_every, options.new_tokens)
    if min(*counts, options.steps or 1) < 1 or options.lora < 0 or options.epochs <= 0:
        parser.error("numbers of rows, steps, epochs and tokens are positive, --lora is 0 or more")
    if options.batch % options.rows or options.rows % options.dp:
        parser.error(f"--rows {options.rows} does not divide --batch {options.batch}, or --dp {options.dp} not --rows")
    if options.quantize and not options.lora:
        parser.error("--quantize goes with --lora: quantised weights are not trained themselves")
    return options


def on_rank_0(step):
    """What one rank writes and all read."""
    if flow.env.get_rank() == 0:
        step()
    flow.comm.barrier()


def made_conversations():
    """A question and its answer; some with a second one."""
    found = []
    for kind, (questions, answer) in enumerate(
        [(COLOURS, "The colour of {} is {}."), (PLACES, "You find {} in this place: {}.")]
    ):
        for i, (thing, facts) in enumerate(THINGS.items()):
            for j, question in enumerate(questions):
                said = [question.format(thing), answer.format(thing, facts[kind])]
                if (i + j) % 3 == 0:
                    said += ["Are you sure?", f"Yes: {facts[kind]}."]
                roles = ["user", "assistant"] * 2
                found.append([{"role": r, "content": s} for r, s in zip(roles, said)])
    return found


def make_data(path, options):
    options.run.mkdir(parents=True, exist_ok=True)
    if options.data or path.exists():
        return
    lines = [json.dumps({"messages": messages}) for messages in made_conversations()]
    path.write_text("\n".join(lines) + "\n")


def make_base(folder, conversations, length):
    """A tiny model, and a tokenizer of the words in the conversations."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def write_tokenizer():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<|im_start|>", "<|im_end|>"]
        trainer = trainers.BpeTrainer(
            vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator([m["content"] for c in conversations for m in c], trainer)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        about = {"chat_template": CHATML, "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2))

    on_rank_0(write_tokenizer)  # all ranks have seen by now that there is no config.json
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": max(length, 256),
        "initializer_range": 0.3,
        "eos_token_id": 1,
    }
    flow.models.from_config(config, dp=flow.env.get_world_size()).save_pretrained(folder)


def read_tokenizer(folder):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SystemExit("finetune: the package tokenizers is not installed: pip install tokenizers") from None
    if not (folder / "tokenizer.json").exists():
        raise SystemExit(
            f"finetune: {folder} has no tokenizer.json. Save the tokenizer there, by its save_pretrained()."
        )
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def packed(conversations, template, tokenizer, length, what):
    """Rows of tokens; tells what did not fit."""
    rows = pack_conversations([template.tokenize(tokenizer, c) for c in conversations], length)
    if flow.env.get_rank() == 0:
        used = (rows.labels >= 0).sum()
        print(f"{what}: {len(conversations)} conversations in {len(rows.ids)} rows, {used:,} labels", flush=True)
        if rows.cut:
            print(
                f"{what}: {rows.cut} are longer than --length {length} and were cut, of which {rows.dropped} have no "
                "label left",
                flush=True,
            )
    return rows


class Rows:
    """Rows in an order that depends on the seed alone, again and again."""

    def __init__(self, rows, seed):
        self.rows, self.seed = rows, seed

    def __call__(self, begin, count):
        n = len(self.rows.ids)
        orders = {
            e: np.random.default_rng([self.seed, e]).permutation(n) for e in range(begin // n, (begin + count) // n + 1)
        }
        return [orders[i // n][i % n] for i in range(begin, begin + count)]


class Learned:
    """The parameters that are trained, for checkpoints: with adapters a small part of the model."""

    def __init__(self, model):
        self.model = model
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = [model.get_parameter(name) for name in self.names]

    def state_dict(self):
        return dict(zip(self.names, self.parameters))

    def load_state_dict(self, state):
        with flow.no_grad():
            for name, p in self.state_dict().items():
                p.copy_(state[name].to_global(p.placement, p.sbp))  # of another layout perhaps


class Losses:
    """Of each step and each evaluation, for checkpoints."""

    def __init__(self):
        self.losses, self.validation = [], []

    def state_dict(self):
        return {"losses": self.losses, "validation": self.validation}

    def load_state_dict(self, state):
        self.losses, self.validation = list(state["losses"]), [list(pair) for pair in state["validation"]]


class Step(nn.Graph):
    """One step, compiled. With a pipeline the parts of a batch follow each other through its stages."""

    def __init__(self, model, optimizer, parameters, parts, amp):
        super().__init__()
        self.model, self.learned, self.amp = model, parameters, amp
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(parts)
        if len(model.placements) > 1:
            for part, stage, placement in model.stages():
                part.to(nn.graph.GraphModule).set_stage(stage, placement)

    def build(self, ids, labels, documents, weights):
        """weights: of each row's part of the batch, so that every label counts alike."""
        with flow.autocast("cpu", flow.bfloat16, enabled=self.amp):
            loss = self.model.loss(ids, labels=labels, document_ids=documents) * weights.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.learned, 1.0)
        return loss


def everywhere(x):
    return x.to_global(flow.placement.all("cpu"), flow.sbp.broadcast) if x.is_global else x


def inputs_of(model, rows, indices, size, dp):
    """What Step.build takes: on the ranks of the first stage, and of the last one."""
    first, last = model.placements[0], model.placements[-1]
    split = (flow.sbp.split(0),) + (flow.sbp.broadcast,) * (len(first.hierarchy) - 1)
    parts = np.asarray(indices).reshape(-1, size)
    counts = (rows.labels[parts] >= 0).sum((1, 2))
    weights = np.repeat((counts * len(counts) / counts.sum()).astype(np.float32)[:, None], size, 1)

    def on(placement, values):
        # A graph's parts of a batch are those of each rank's rows: every rank gets its share of all parts.
        by_rank = values.reshape(len(parts), dp, size // dp, *values.shape[2:]).swapaxes(0, 1)
        return flow.tensor(by_rank.reshape(-1, *values.shape[2:]), placement=placement, sbp=split)

    return (
        on(first, rows.ids[parts]),
        on(last, rows.labels[parts]),
        on(first, rows.documents[parts]),
        on(last, weights),
    )


def evaluate(model, rows, size):
    """The mean loss over all labels."""
    model.eval()
    total = count = 0
    with flow.no_grad():
        for begin in range(0, len(rows.ids), size):
            ids, labels, documents = (flow.tensor(a[begin : begin + size]) for a in rows[:3])
            loss = model.loss(ids, labels=labels, document_ids=documents)
            n = int((rows.labels[begin : begin + size] >= 0).sum())
            total, count = total + everywhere(loss).item() * n, count + n
    model.train()
    return total / count


def answer(model, tokenizer, template, prompt, new_tokens):
    """What the model says to a user's words."""
    text = template.render([{"role": "user", "content": prompt}], add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    training = model.training
    model.eval()
    row = model.generate(flow.tensor([ids]), max_new_tokens=new_tokens)[0].tolist()
    model.train(training)
    return tokenizer.decode(row[len(ids) :])


def learning_rate(step, steps, peak):
    """A warm-up over a twentieth of the steps, then half a cosine down to a tenth."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def main(argv=None):
    options = arguments(argv)
    first, size = flow.env.get_rank() == 0, options.rows
    data, folder = options.data or options.run / "data.jsonl", options.model or options.run / "base"
    on_rank_0(lambda: make_data(data, options))
    conversations = read_conversations(data)
    held_out = read_conversations(options.validation) if options.validation else conversations[::10]
    if not options.validation:
        conversations = [c for i, c in enumerate(conversations) if i % 10]
        if not conversations:
            raise SystemExit(f"finetune: {data} has one conversation, which leaves none to train on. Give more.")
    flow.manual_seed(options.seed)
    if not options.model and not (folder / "config.json").exists():
        make_base(folder, conversations, options.length)
    tokenizer, template = read_tokenizer(folder), ChatTemplate.from_pretrained(folder)
    train = packed(conversations, template, tokenizer, options.length, "training")
    validation = packed(held_out, template, tokenizer, options.length, "validation")
    layout = {"dp": options.dp, "tp": options.tp, "pp": options.pp}
    model = flow.models.from_pretrained(folder, **layout, dtype=getattr(flow, options.dtype), quantize=options.quantize)
    if (most := max(train.ids.max(), validation.ids.max())) >= model.config["vocab_size"]:
        raise SystemExit(f"finetune: the tokenizer gives {most}; the model has {model.config['vocab_size']} tokens.")
    model.train()
    flow.manual_seed(options.seed)
    if options.lora:
        targets = options.targets if options.targets == "all-linear" else options.targets.split(",")
        alpha = 2 * options.lora if options.alpha is None else options.alpha
        model.add_lora(targets, r=options.lora, lora_alpha=alpha, lora_dropout=options.dropout)
    learned, state = Learned(model), Losses()
    peak = options.lr or ((2e-4 if options.lora else 2e-5) if options.model else (5e-3 if options.lora else 3e-3))
    optimizer = optim.AdamW(learned.parameters, lr=peak, betas=(0.9, 0.95), weight_decay=0.0)
    steps = options.steps or max(1, round(options.epochs * len(train.ids) / options.batch))
    checkpoints = Checkpointer(
        options.run / "checkpoints", asynchronous=True, model=learned, optimizer=optimizer, state=state
    )
    found = checkpoints.restore()
    begin = found.step if found else 0
    if first:
        total, count = (sum(p.numel() for p in ps) for ps in (model.parameters(), learned.parameters))
        print(
            f"{count:,} of {total:,} parameters are trained, {steps} steps of {options.batch} rows, "
            f"{options.dp} x {options.tp} x {options.pp} ranks (data x tensor x pipeline parallel)"
            + (f", from step {begin}" if begin else ""),
            flush=True,
        )
    prompt = options.prompt or next((m["content"] for m in held_out[0] if m["role"] == "user"), "Hello")
    ask = lambda: answer(model, tokenizer, template, prompt, options.new_tokens)
    if not begin:
        before = ask()
        state.validation.append([0, evaluate(model, validation, size)])
        if first:
            print(f"before: {prompt!r} -> {before!r}, validation {state.validation[0][1]:.4f}", flush=True)
    run_step = Step(model, optimizer, learned.parameters, options.batch // size, options.amp)
    order, clock = Rows(train, options.seed), time.monotonic()
    for step in range(begin, steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        indices = order(step * options.batch, options.batch)
        loss = everywhere(run_step(*inputs_of(model, train, indices, size, options.dp)).mean()).item()
        state.losses.append(loss)
        done = step + 1
        if done % options.evaluate_every == 0 or done == steps:
            state.validation.append([done, evaluate(model, validation, size)])
            if first:
                rate = (done - begin) * options.batch * options.length / (time.monotonic() - clock)
                print(
                    f"step {done}: loss {loss:.4f}, validation {state.validation[-1][1]:.4f}, {rate:,.0f} tokens/s",
                    flush=True,
                )
        if done % options.save_every == 0 or done == steps:
            checkpoints.save(done)
    checkpoints.wait()
    after = ask()
    if options.lora:
        model.save_adapter(options.run / "adapter", str(folder))
        if options.merge and not options.quantize:
            model.merge_lora()
    if options.merge or not options.lora:
        if options.quantize:
            model = flow.models.from_pretrained(folder, **layout, dtype=getattr(flow, options.dtype))
            model.load_adapter(options.run / "adapter").merge_lora()
        model.save_pretrained(options.run / "model")
        files = [*folder.glob("*token*"), *folder.glob("chat_template*")]
        on_rank_0(lambda: [shutil.copy(f, options.run / "model") for f in files])
    if first:
        np.savetxt(options.run / "losses.txt", state.losses, fmt="%.6f")
        np.savetxt(options.run / "validation.txt", state.validation, fmt=["%d", "%.6f"])
        print(f"after: {prompt!r} -> {after!r}", flush=True)
    return state.losses


if __name__ == "__main__":
    main()
