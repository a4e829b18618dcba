"""Trains a ViT or a ResNet on images in folders, on any number of ranks. --depth is the dial: width and learning rate
follow from it.

    python examples/vision/vision.py RUN --images FOLDER --model vit --depth 6 --size 64
    python -m holon.distributed.launch --nproc_per_node 4 examples/vision/vision.py RUN --images FOLDER --model resnet

FOLDER has train/CLASS/* and val/CLASS/*. Without --images, RUN/images is made: small drawings of shapes. --model may be
the folder of a checkpoint of either, whose head is replaced. Images are read, cut and changed by PyPI's Pillow in
worker processes. Checkpoints go to RUN/checkpoints: the same command continues where a run was interrupted, also on
other ranks. At the end RUN/model is a checkpoint that transformers reads, of the parameters' mean over the last steps.
"""

import argparse
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from holon.utils.data import DataLoader, Dataset

import holon as flow
from holon import nn, optim
from holon.checkpoint import Checkpointer

try:
    from PIL import Image, ImageDraw, ImageEnhance, ImageOps
except ImportError:
    raise SystemExit("vision: the package Pillow is not installed: pip install pillow") from None

KINDS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MEAN, DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])  # ImageNet's, of each channel


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of checkpoints and the model")
    parser.add_argument("--images", type=Path, help="folder of train/CLASS/* and val/CLASS/* (default: some are drawn)")
    parser.add_argument("--model", default="vit", help="vit, resnet, or the folder of a checkpoint to go on from")
    parser.add_argument("--depth", type=int, default=4, help="layers of a ViT, blocks of each stage of a ResNet")
    parser.add_argument("--size", type=int, default=32, help="height and width that images get")
    parser.add_argument("--batch", type=int, default=64, help="images of a step, over all ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, help="default: 1e-3 x sqrt(4 / depth)")
    parser.add_argument("--smoothing", type=float, default=0.1, help="of labels")
    parser.add_argument("--mixup", type=float, default=0.2, help="parameter of the Beta distribution; 0: none")
    parser.add_argument("--augment", type=int, default=2, help="changes of each image, besides cutting and mirroring")
    parser.add_argument("--workers", type=int, default=2, help="processes of each rank that read images")
    parser.add_argument("--dp", type=int, help="groups that share the images (default: what --tp leaves)")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share the heads and hidden units")
    parser.add_argument("--amp", action="store_true", help="products in bfloat16")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if min(options.depth, options.size // 8, options.batch, options.epochs, options.save_every) < 1:
        parser.error("--depth, --batch, --epochs and --save-every are at least 1, --size is at least 8")
    if not 0 <= options.smoothing < 1 or options.mixup < 0:
        parser.error("--smoothing is from 0 to below 1, --mixup 0 or more")
    options.dp = options.dp or max(1, flow.env.get_world_size() // options.tp)
    return options


# Images in folders


def draw_images(folder, seed, train=60, val=15, size=40):
    """Shapes in two colours, of some size and at some place, in front of noise."""
    rng = np.random.default_rng(seed)
    shapes = {
        "circle": lambda d, box, c: d.ellipse(box, fill=c),
        "cross": lambda d, b, c: [d.line([b[0], b[1], b[2], b[3]], c, 4), d.line([b[0], b[3], b[2], b[1]], c, 4)],
        "ring": lambda d, box, c: d.ellipse(box, outline=c, width=4),
        "square": lambda d, box, c: d.rectangle(box, fill=c),
        "stripes": lambda d, b, c: [d.line([b[0], y, b[2], y], c, 3) for y in range(b[1], b[3], 7)],
        "triangle": lambda d, b, c: d.polygon([(b[0], b[3]), (b[2], b[3]), ((b[0] + b[2]) // 2, b[1])], fill=c),
    }
    for part, count in (("train", train), ("val", val)):
        for name, draw in shapes.items():
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                dark, light = rng.integers(0, 90, 3), rng.integers(150, 256, 3)
                if rng.random() < 0.5:
                    dark, light = light, dark
                noise = np.clip(dark + rng.normal(0, 20, (size, size, 3)), 0, 255).astype(np.uint8)
                image, wide = Image.fromarray(noise), int(rng.integers(16, 30))
                left, top = (int(x) for x in rng.integers(2, size - wide - 1, 2))
                draw(ImageDraw.Draw(image), [left, top, left + wide, top + wide], tuple(int(x) for x in light))
                image.save(folder / part / name / f"{i:03}.png")


def list_images(folder):
    """(file, class) of all images below folder/CLASS, and the classes."""
    if not folder.is_dir():
        raise SystemExit(f"vision: {folder} is not there. --images is a folder of train/CLASS/* and val/CLASS/*.")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in KINDS
    ]
    empty = set(range(len(classes))) - {label for _, label in found}
    if not found or empty:
        where = (
            f"{folder}: the folder {classes[min(empty)]} has" if classes else f"{folder} has no folders of classes with"
        )
        raise SystemExit(f"vision: {where} no images ({', '.join(sorted(KINDS))}).")
    return found, classes


def find_images(folder):
    """The images of train and val, of the same classes."""
    (train, classes), (val, others) = list_images(folder / "train"), list_images(folder / "val")
    if classes != others:
        only = [
            f"{part} alone has {', '.join(sorted(set(a) - set(b)))}"
            for part, a, b in (("train", classes, others), ("val", others, classes))
            if set(a) - set(b)
        ]
        raise SystemExit(f"vision: the classes of {folder}/train and {folder}/val differ: {'; '.join(only)}.")
    if len(classes) < 2:
        raise SystemExit(f"vision: {folder} has one class, {classes[0]}. There is nothing to tell apart.")
    return train, val, classes


def problem_of(path):
    """What is wrong with an image; None if it can be read to its end."""
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"{path}: {error}"


def check_images(files, record):
    """Reads each image once, on some rank, so that a bad one is found before the first step. record has those that were
    read by earlier starts."""
    stamps = {str(f): [f.stat().st_size, f.stat().st_mtime_ns] for f in files}
    known = json.loads(record.read_text()) if record.exists() else {}
    new = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    with ThreadPoolExecutor(8) as pool:  # decoders run without Python's lock
        mine = new[flow.env.get_rank() :: flow.env.get_world_size()]
        problems = [p for p in pool.map(problem_of, mine) if p]
    bad = flow.tensor([len(problems)], placement=flow.placement.all("cpu"), sbp=flow.sbp.partial_sum)
    if int(bad.to_global(bad.placement, flow.sbp.broadcast).item()):
        listed = "\n".join(problems[:10]) or "(named by other ranks)"
        raise SystemExit(f"vision: {len(problems)} images cannot be read. Replace or remove them.\n{listed}")
    if flow.env.get_rank() == 0:
        record.write_text(json.dumps({**known, **stamps}))
    flow.comm.barrier()


# What each image of a step goes through

CHANGES = [
    lambda im, x: im.rotate(30 * x, Image.Resampling.BILINEAR),
    lambda im, x: im.transform(im.size, Image.Transform.AFFINE, (1, 0.3 * x, 0, 0, 1, 0), Image.Resampling.BILINEAR),
    lambda im, x: im.transform(im.size, Image.Transform.AFFINE, (1, 0, 0, 0.3 * x, 1, 0), Image.Resampling.BILINEAR),
    lambda im, x: ImageEnhance.Brightness(im).enhance(1 + 0.6 * x),
    lambda im, x: ImageEnhance.Contrast(im).enhance(1 + 0.6 * x),
    lambda im, x: ImageEnhance.Color(im).enhance(1 + 0.6 * x),
    lambda im, x: ImageEnhance.Sharpness(im).enhance(1 + 0.6 * x),
    lambda im, x: ImageOps.posterize(im, 8 - int(4 * abs(x))),
    lambda im, x: ImageOps.solarize(im, 256 - int(96 * abs(x))),
    lambda im, x: ImageOps.autocontrast(im),
    lambda im, x: ImageOps.equalize(im),
]


def augmented(image, size, changes, rng):
    """A part of the image of at least a third, half of the time mirrored, with some random changes (RandAugment)."""
    width, height = image.size
    for _ in range(10):
        area, ratio = width * height * rng.uniform(0.35, 1), math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
            image = image.resize((size, size), Image.Resampling.BILINEAR, (x, y, x + w, y + h))
            break
    else:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    for change in rng.integers(0, len(CHANGES), changes):
        image = CHANGES[change](image, rng.uniform(-1, 1))
    return image


class Images(Dataset):
    """Pixels [3, size, size] and classes. What is drawn for an image depends on the seed, the epoch and its number."""

    def __init__(self, files, size, changes=None, seed=0):
        self.files, self.size, self.changes, self.seed, self.epoch = files, size, changes, seed, 0

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
        if self.changes is None:
            image = ImageOps.fit(image, (self.size, self.size), Image.Resampling.BILINEAR)
        else:
            image = augmented(image, self.size, self.changes, np.random.default_rng([self.seed, self.epoch, index]))
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / DEVIATION
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)), np.int64(label)


# Model and training


def config_of(options, classes):
    """The sizes that follow from the depth."""
    depth, size = options.depth, options.size
    labels = {
        "id2label": {str(i): name for i, name in enumerate(classes)},
        "label2id": {name: i for i, name in enumerate(classes)},
    }
    if options.model == "resnet":
        widths = [32 * depth * 2**i for i in range(4 if size >= 64 else 3)]
        return {
            "model_type": "resnet",
            "architectures": ["ResNetForImageClassification"],
            "embedding_size": 32 * depth,
            "hidden_sizes": widths,
            "depths": [depth] * len(widths),
            "layer_type": "basic",
            **labels,
        }
    patch = 16 if size >= 128 else max(2, size // 8)
    if size % patch:
        raise SystemExit(f"vision: --size {size} is not a multiple of the patches' {patch}. Choose a multiple of it.")
    if depth % options.tp:
        raise SystemExit(f"vision: --depth {depth} gives {depth} heads, which --tp {options.tp} does not divide.")
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": size,
        "patch_size": patch,
        "hidden_size": 64 * depth,
        "intermediate_size": 256 * depth,
        "num_hidden_layers": depth,
        "num_attention_heads": depth,
        "hidden_dropout_prob": 0.0,
        **labels,
    }


def make_model(options, classes):
    layout = {"dp": options.dp, "tp": options.tp}
    if options.model in ("vit", "resnet"):
        return flow.models.from_config(config_of(options, classes), **layout)
    folder = Path(options.model)
    if not (folder / "config.json").exists():
        raise SystemExit(f"vision: --model {folder} is neither vit, resnet nor a folder with config.json.")
    before = flow.models.from_pretrained(folder, **layout)
    if before.config["model_type"] not in ("vit", "resnet"):
        raise SystemExit(f"vision: {folder} is a {before.config['model_type']}; it must be a vit or resnet.")
    size = before.config.get("image_size", options.size)
    if size != options.size:
        raise SystemExit(f"vision: the model in {folder} takes images of {size}; choose --size {size}.")
    config = config_of(argparse.Namespace(**{**vars(options), "model": "resnet"}), classes)
    model = flow.models.from_config(
        {**before.config, "num_labels": None, "id2label": config["id2label"], "label2id": config["label2id"]}, **layout
    )
    kept = {n: t for n, t in before.state_dict().items() if not n.startswith("classifier.")}
    model.load_state_dict(kept, strict=False)
    return model


class State:
    """What is saved besides model, optimizer and the place in the images: the losses, and the mean of the model's
    parameters and running statistics over the steps."""

    def __init__(self, model, decay=0.99):
        self.model, self.decay, self.losses, self.validation = model, decay, [], []
        self.mean = {name: t.detach().clone() for name, t in self.tensors()}

    def tensors(self):
        return [(n, t) for n, t in self.model.state_dict().items() if t.dtype == flow.float32]

    def update(self, step):
        decay = min(self.decay, (1 + step) / (10 + step))
        with flow.no_grad():
            for name, t in self.tensors():
                self.mean[name].lerp_(t.detach(), 1 - decay)

    def swap(self):
        """Exchanges the model's tensors and their mean."""
        with flow.no_grad():
            for name, t in self.tensors():
                now = t.detach().clone()
                t.copy_(self.mean[name])
                self.mean[name].copy_(now)

    def state_dict(self):
        return {"losses": self.losses, "validation": self.validation, "mean": self.mean}

    def load_state_dict(self, state):
        self.losses, self.validation = list(state["losses"]), [list(row) for row in state["validation"]]
        with flow.no_grad():
            for name, mean in self.mean.items():
                mean.copy_(state["mean"][name].to_global(mean.placement, mean.sbp))  # of another layout perhaps


def learning_rate(step, steps, peak):
    """A warm-up over a tenth of the steps, then half a cosine down to nearly 0."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.505 + 0.495 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def loss_of(model, pixels, labels, smoothing, mixup, rng):
    """Cross-entropy with smoothed labels; with mixup of each image and the one at its place from the end."""
    share = rng.beta(mixup, mixup) if mixup > 0 else 1.0
    if share < 1:
        pixels = pixels * share + flow.flip(pixels, 0) * (1 - share)
    logits = model(pixels)
    loss = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    if share < 1:
        other = nn.functional.cross_entropy(logits, flow.flip(labels, 0), label_smoothing=smoothing)
        loss = loss * share + other * (1 - share)
    return loss


def evaluate(model, state, loader):
    """Loss, and in how many of a hundred the class is first, or among the first five, by the averaged parameters."""
    state.swap()
    model.eval()
    loss, first, five, count = 0.0, 0, 0, 0
    with flow.no_grad():
        for pixels, labels in loader:
            logits = model(pixels)
            n = labels.shape[0]
            loss += nn.functional.cross_entropy(logits, labels).item() * n
            best = flow.topk(logits, min(5, logits.shape[1]), dim=1)[1] == labels.unsqueeze(1)
            first += int(best[:, :1].to(flow.int64).sum().item())
            five += int(best.to(flow.int64).sum().item())
            count += n
    model.train()
    state.swap()
    return loss / count, 100 * first / count, 100 * five / count


def main(argv=None):
    options = arguments(argv)
    leads = flow.env.get_rank() == 0
    folder = options.images or options.run / "images"
    if leads:
        options.run.mkdir(parents=True, exist_ok=True)
        if not options.images and not folder.exists():
            draw_images(folder, options.seed)
    flow.comm.barrier()
    train, val, classes = find_images(folder)
    if len(train) < options.batch:
        raise SystemExit(f"vision: {len(train)} images are too few for --batch {options.batch}.")
    check_images([path for path, _ in train + val], options.run / "images.json")
    flow.manual_seed(options.seed)
    model = make_model(options, classes).train()
    count = sum(p.numel() for p in model.parameters())
    peak = options.lr or 1e-3 * (4 / options.depth) ** 0.5
    optimizer = optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.05},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=peak,
    )
    images = Images(train, options.size, options.augment, options.seed)
    rows = {"placement": model.placements[0], "sbp": (flow.sbp.split(0), flow.sbp.broadcast)}
    loader = DataLoader(
        images, options.batch, shuffle=True, drop_last=True, num_workers=options.workers, generator=options.seed, **rows
    )
    held_out = DataLoader(Images(val, options.size), options.batch, num_workers=options.workers, **rows)
    state, each = State(model), len(train) // options.batch
    steps = options.epochs * each
    checkpoints = Checkpointer(
        options.run / "checkpoints", asynchronous=True, model=model, optimizer=optimizer, state=state, loader=loader
    )
    found = checkpoints.restore()
    done = begin = found.step if found else 0
    if leads:
        print(
            f"{count:,} parameters, {len(train)} + {len(val)} images of {len(classes)} classes, {steps} steps of "
            f"{options.batch}, {options.dp} x {options.tp} ranks (data x tensor parallel)"
            + (f", from step {begin}" if begin else ""),
            flush=True,
        )
    clock = time.monotonic()
    while done < steps:
        images.epoch = done // each
        for pixels, labels in loader:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(done, steps, peak)
            optimizer.zero_grad()
            rng = np.random.default_rng([options.seed, done])
            with flow.autocast("cpu", flow.bfloat16, enabled=options.amp):
                loss = loss_of(model, pixels, labels, options.smoothing, options.mixup, rng)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            state.update(done)
            state.losses.append(loss.item())
            done += 1
            if done % options.save_every == 0 and done % each:
                checkpoints.save(done)
        validation, first, five = evaluate(model, state, held_out)
        state.validation.append([done, validation, first, five])
        if leads:
            rate = (done - begin) * options.batch / (time.monotonic() - clock)
            print(
                f"epoch {done // each}: loss {state.losses[-1]:.4f}, validation {validation:.4f}, top-1 {first:.1f} %, "
                f"top-5 {five:.1f} %, {rate:,.0f} images/s",
                flush=True,
            )
        checkpoints.save(done)
    checkpoints.wait()
    state.swap()
    model.eval()
    model.save_pretrained(options.run / "model")
    if leads:
        about = {
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": MEAN.tolist(),
            "image_std": DEVIATION.tolist(),
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": options.size, "width": options.size},
        }
        (options.run / "model" / "preprocessor_config.json").write_text(json.dumps(about, indent=2))
        np.savetxt(options.run / "losses.txt", state.losses, fmt="%.6f")
        np.savetxt(options.run / "validation.txt", state.validation, fmt=["%d", "%.6f", "%.2f", "%.2f"])
    return state.losses


if __name__ == "__main__":
    main()
