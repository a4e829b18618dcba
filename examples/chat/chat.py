"""Talks with a model in the terminal: a folder with config.json, weights and tokenizer.json, as transformers saves it.

    python examples/chat/chat.py FOLDER
    python -m holon.distributed.launch --nproc_per_node 2 examples/chat/chat.py FOLDER --tp 2

The tokenizer is PyPI's `tokenizers`. --user and --model are what stands before each one's words, in the form that the
model was trained with; what has been said is in each prompt, as far as the model's positions go. An empty line ends.
"""

import argparse
import os
import sys

import holon as flow


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    for name, ranks in (("dp", "rows"), ("tp", "heads and hidden units"), ("pp", "layers"), ("ep", "experts")):
        parser.add_argument(f"--{name}", type=int, default=1, help=f"ranks that share the {ranks}")
    parser.add_argument("--user", default="User: ")
    parser.add_argument("--model", default="Assistant:")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8, help="0: the most probable token is next")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read_tokenizer(folder):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SystemExit("chat: the package tokenizers is not installed: pip install tokenizers") from None
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        raise SystemExit(f"chat: {path} is not there. Save the tokenizer beside the model, by its save_pretrained().")
    return Tokenizer.from_file(path)


def from_rank_0(tokens):
    """Rank 0's list, on all ranks."""
    count = flow.tensor([len(tokens)])
    flow.comm.broadcast(count)
    values = flow.tensor(tokens) if flow.env.get_rank() == 0 else flow.zeros(count.item(), dtype=flow.int64)
    if count.item():
        flow.comm.broadcast(values)
    return values.tolist()


class Printer:
    """Prints the text of new tokens as they come; what is not whole yet, such as half a character, waits."""

    def __init__(self, tokenizer, stop):
        self.tokenizer, self.stop, self.tokens, self.shown = tokenizer, stop, [], 0

    def text(self):
        return self.tokenizer.decode(self.tokens).split(self.stop)[0]

    def __call__(self, step, tokens):
        self.tokens += tokens
        text = self.text()
        # The beginning of what ends the answer is not shown before it is clear that it is something else.
        held = next((n for n in range(len(self.stop) - 1, 0, -1) if text.endswith(self.stop[:n])), 0)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self.show(text[: len(text) - held])

    def show(self, text):
        if flow.env.get_rank() == 0:
            print(text[self.shown :], end="", flush=True)
        self.shown = max(self.shown, len(text))


def answer(model, tokenizer, said, options, seed):
    """The model's words that follow what has been said; prints them as they come."""
    new = options.max_new_tokens
    most = model.config.get("max_position_embeddings") or model.config.get("n_positions", 1024)
    if new >= most:
        raise SystemExit(f"chat: --max-new-tokens {new} are all of the model's {most} positions. Choose fewer.")
    prompt = from_rank_0(tokenizer.encode(said).ids[new - most :])
    stop = "\n" + options.user.strip()
    printer = Printer(tokenizer, stop)
    sampling = {"do_sample": True, "temperature": options.temperature, "top_p": options.top_p, "seed": seed}
    model.generate(
        flow.tensor([prompt]),
        max_new_tokens=new,
        stop_strings=stop,
        tokenizer=tokenizer,
        streamer=printer,
        **(sampling if options.temperature > 0 else {}),
    )
    printer.show(printer.text())
    return printer.text()


def main():
    options = arguments()
    tokenizer = read_tokenizer(options.folder)
    layout = {name: getattr(options, name) for name in ("dp", "tp", "pp", "ep")}
    model = flow.models.from_pretrained(options.folder, **layout)
    first, said, turn = flow.env.get_rank() == 0, "", 0
    while True:
        if first:
            print(options.user, end="", flush=True)
            words = sys.stdin.readline().strip()
            said += f"{options.user}{words}\n{options.model}"
        if not from_rank_0([1] if first and words else []):
            break
        if first:
            print(options.model, end="", flush=True)
        said += answer(model, tokenizer, said, options, options.seed + turn) + "\n"
        turn += 1
        if first:
            print(flush=True)


if __name__ == "__main__":
    main()
