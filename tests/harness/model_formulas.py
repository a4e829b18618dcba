"""What models compute, by their papers' formulas in NumPy and float64, from a checkpoint's tensors by name."""

import math

import numpy as np

erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(logits, labels):
    """The mean over labels that are not -100."""
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    counted = labels != -100
    logits, labels = logits[counted], labels[counted]
    return -np.log(softmax(logits)[np.arange(len(labels)), labels]).mean()


def next_tokens(logits, labels):
    return cross_entropy(logits[:, :-1], labels[:, 1:])


class Weights:
    def __init__(self, tensors, prefix=""):
        self.tensors, self.prefix = tensors, prefix

    def __getitem__(self, name):
        return self.tensors[self.prefix + name]

    def __contains__(self, name):
        return self.prefix + name in self.tensors

    def below(self, name):
        return Weights(self.tensors, f"{self.prefix}{name}.")

    def linear(self, name, x):
        y = x @ self[f"{name}.weight"].T
        return y + self[f"{name}.bias"] if f"{name}.bias" in self else y

    def layer_norm(self, name, x, eps):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * self[f"{name}.weight"] + self[f"{name}.bias"]

    def rms_norm(self, name, x, eps):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * self[f"{name}.weight"]


def heads(x, n):
    return x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2)


def attention(q, k, v, seen, scale=None, bias=0.0):
    """Of [batch, heads, length, width]; seen: which keys a query sees; 0 if it sees none."""
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1])) + bias
    y = softmax(np.where(seen, scores, -1e30)) * np.any(seen, -1, keepdims=True) @ v
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def seen_by(shape, causal, attention_mask=None, position_ids=None, window=None, **_):
    """[batch, 1, queries, keys]; documents begin where positions do."""
    batch, length = shape
    seen = np.ones((batch, 1, length, length), bool)
    if causal:
        seen &= np.tri(length, dtype=bool)
    if window:
        seen &= ~np.tri(length, k=-window, dtype=bool)
    if attention_mask is not None:
        seen &= attention_mask[:, None, None, :] == 1
    elif position_ids is not None:
        document = (position_ids == 0).cumsum(1)
        seen &= (document[:, :, None] == document[:, None, :])[:, None]
    return seen


def rotated(x, positions, theta):
    half = x.shape[-1] // 2
    angle = positions[:, None, :, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def swiglu(w, x, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    return w.linear(down, ACTIVATIONS["silu"](w.linear(gate, x)) * w.linear(up, x))


def within_capacity(best, n_experts, factor):
    """Which choices [batch, length, experts] are kept: first ones before second ones, then by position."""
    batch, length, k = best.shape
    capacity = math.ceil(factor * length * k / n_experts)
    kept = np.zeros((batch, length, n_experts))
    for b in range(batch):
        for choice in range(k):
            for t in range(length):
                expert = best[b, t, choice]
                kept[b, t, expert] = kept[b, :, expert].sum() < capacity
    return kept


def router_losses(config, attention_mask=None):
    """Of transformers' load_balancing_loss_func on all layers' logits and choices, and of ST-MoE's z-loss."""
    logits, best = (np.concatenate([r[i].reshape(-1, r[i].shape[-1]) for r in config["routers"]]) for i in (0, 1))
    counted = np.ones(len(logits))
    if attention_mask is not None:
        counted = np.tile(attention_mask.reshape(-1), len(config["routers"]))
    experts = logits.shape[-1]
    one_hot = best[..., None] == np.arange(experts)  # [tokens, k, experts]
    share = (one_hot * counted[:, None, None]).sum(0) / counted.sum()
    probability = (softmax(logits) * counted[:, None]).sum(0) / counted.sum()
    balance = (share * probability).sum() * experts
    z = (np.log(np.exp(logits).sum(-1)) ** 2 * counted).sum() / counted.sum()
    return config["router_aux_loss_coef"] * balance + config["router_z_loss_coef"] * z


def experts(w, x, config, mixtral):
    """Each token's best experts, one after the other. What routers choose is appended to config["routers"]."""
    logits = w.linear("gate", x)
    shares = softmax(logits)
    best = np.argsort(-shares, -1)[..., : config["num_experts_per_tok"]]
    if "routers" in config:
        config["routers"].append((logits, best))
    chosen = np.zeros_like(shares)
    np.put_along_axis(chosen, best, 1, -1)
    shares = shares * chosen
    if mixtral or config.get("norm_topk_prob"):
        shares = shares / shares.sum(-1, keepdims=True)
    if config.get("capacity_factor"):
        shares = shares * within_capacity(best, shares.shape[-1], config["capacity_factor"])
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    y = sum(shares[..., e : e + 1] * swiglu(w.below(f"experts.{e}"), x, names) for e in range(shares.shape[-1]))
    if "shared_expert_gate.weight" in w:
        y = y + swiglu(w.below("shared_expert"), x) / (1 + np.exp(-w.linear("shared_expert_gate", x)))
    return y


def llama(config, w, input, **given):
    """Llama, Mistral, Qwen2, Qwen3, Mixtral, Qwen2-MoE and Qwen3-MoE."""
    n, eps = config["num_attention_heads"], config.get("rms_norm_eps", 1e-6)
    theta = config.get("rope_theta", 10000.0)
    positions = given.get("position_ids", np.arange(input.shape[1])[None])
    seen = seen_by(input.shape, True, window=config.get("sliding_window"), **given)
    x = w["model.embed_tokens.weight"][input]
    for i in range(config["num_hidden_layers"]):
        layer = w.below(f"model.layers.{i}")
        h, a = layer.rms_norm("input_layernorm", x, eps), layer.below("self_attn")
        q, k, v = heads(a.linear("q_proj", h), n), a.linear("k_proj", h), a.linear("v_proj", h)
        k, v = (heads(t, t.shape[-1] // q.shape[-1]) for t in (k, v))
        if "q_norm.weight" in a:
            q, k = a.rms_norm("q_norm", q, eps), a.rms_norm("k_norm", k, eps)
        x = x + a.linear("o_proj", attention(rotated(q, positions, theta), rotated(k, positions, theta), v, seen))
        h = layer.rms_norm("post_attention_layernorm", x, eps)
        if "block_sparse_moe.gate.weight" in layer:
            x = x + experts(layer.below("block_sparse_moe"), h, config, True)
        elif "mlp.gate.weight" in layer:
            x = x + experts(layer.below("mlp"), h, config, False)
        else:
            x = x + swiglu(layer.below("mlp"), h)
    x = w.rms_norm("model.norm", x, eps)
    return x @ w["lm_head.weight" if "lm_head.weight" in w else "model.embed_tokens.weight"].T


def deepseek(config, w, input, **given):
    """Multi-head latent attention, and experts in groups."""
    n, nope, theta = config["num_attention_heads"], config["qk_nope_head_dim"], 10000.0
    rank, value = config["kv_lora_rank"], config["v_head_dim"]
    positions = given.get("position_ids", np.arange(input.shape[1])[None])
    seen = seen_by(input.shape, True, **given)

    def turned(x):  # pairs that are next to each other
        return rotated(np.concatenate([x[..., 0::2], x[..., 1::2]], -1), positions, theta)

    def routed(mlp, x):
        scores = 1 / (1 + np.exp(-mlp.linear("gate", x)))
        wanted = scores + mlp["gate.e_score_correction_bias"]
        groups = wanted.reshape(*wanted.shape[:2], config["n_group"], -1)
        value = np.sort(groups, -1)[..., -2:].sum(-1)
        worst = np.argsort(-value, -1)[..., config["topk_group"] :]
        np.put_along_axis(groups, worst[..., None], -np.inf, 2)
        chosen = np.zeros_like(scores)
        np.put_along_axis(chosen, np.argsort(-wanted, -1)[..., : config["num_experts_per_tok"]], 1, -1)
        shares = scores * chosen
        shares = shares / shares.sum(-1, keepdims=True) * config.get("routed_scaling_factor", 2.5)
        y = sum(shares[..., e : e + 1] * swiglu(mlp.below(f"experts.{e}"), x) for e in range(shares.shape[-1]))
        return y + swiglu(mlp.below("shared_experts"), x)

    x = w["model.embed_tokens.weight"][input]
    for i in range(config["num_hidden_layers"]):
        layer = w.below(f"model.layers.{i}")
        h, a = layer.rms_norm("input_layernorm", x, 1e-6), layer.below("self_attn")
        q = heads(a.linear("q_b_proj", a.rms_norm("q_a_layernorm", a.linear("q_a_proj", h), 1e-6)), n)
        latent = a.linear("kv_a_proj_with_mqa", h)
        kv = heads(a.linear("kv_b_proj", a.rms_norm("kv_a_layernorm", latent[..., :rank], 1e-6)), n)
        shared = np.repeat(turned(latent[:, None, :, rank:]), n, 1)
        q = np.concatenate([q[..., :nope], turned(q[..., nope:])], -1)
        k = np.concatenate([kv[..., :nope], shared], -1)
        assert kv.shape[-1] == nope + value
        x = x + a.linear("o_proj", attention(q, k, kv[..., nope:], seen))
        h, mlp = layer.rms_norm("post_attention_layernorm", x, 1e-6), layer.below("mlp")
        x = x + (routed(mlp, h) if "gate.weight" in mlp else swiglu(mlp, h))
    return w.linear("lm_head", w.rms_norm("model.norm", x, 1e-6))


def gpt2(config, w, input, **given):
    def conv(part, name, x):
        return x @ part[f"{name}.weight"] + part[f"{name}.bias"]

    positions = given.get("position_ids", np.arange(input.shape[1])[None])
    seen = seen_by(input.shape, True, **given)
    w = w.below("transformer")
    x = w["wte.weight"][input] + w["wpe.weight"][positions]
    for i in range(config["n_layer"]):
        layer = w.below(f"h.{i}")
        q, k, v = (
            heads(t, config["n_head"])
            for t in np.split(conv(layer, "attn.c_attn", layer.layer_norm("ln_1", x, 1e-5)), 3, -1)
        )
        x = x + conv(layer, "attn.c_proj", attention(q, k, v, seen))
        h = ACTIVATIONS["gelu_new"](conv(layer, "mlp.c_fc", layer.layer_norm("ln_2", x, 1e-5)))
        x = x + conv(layer, "mlp.c_proj", h)
    return w.layer_norm("ln_f", x, 1e-5) @ w["wte.weight"].T


def bert(config, w, input, token_type_ids=None, **given):
    eps, act, table = 1e-12, ACTIVATIONS["gelu"], w.below("bert.embeddings")
    seen = seen_by(input.shape, False, **given)
    types = np.zeros_like(input) if token_type_ids is None else token_type_ids
    x = table["word_embeddings.weight"][input] + table["position_embeddings.weight"][: input.shape[1]]
    x = table.layer_norm("LayerNorm", x + table["token_type_embeddings.weight"][types], eps)
    for i in range(config["num_hidden_layers"]):
        layer = w.below(f"bert.encoder.layer.{i}")
        own = layer.below("attention.self")
        q, k, v = (heads(own.linear(n, x), config["num_attention_heads"]) for n in ("query", "key", "value"))
        y = layer.linear("attention.output.dense", attention(q, k, v, seen))
        x = layer.layer_norm("attention.output.LayerNorm", x + y, eps)
        y = layer.linear("output.dense", act(layer.linear("intermediate.dense", x)))
        x = layer.layer_norm("output.LayerNorm", x + y, eps)
    head = w.below("cls.predictions")
    x = head.layer_norm("transform.LayerNorm", act(head.linear("transform.dense", x)), eps)
    return x @ table["word_embeddings.weight"].T + head["bias"]


def convolution(x, weight, stride=1, padding=0):
    """Of [n, c, h, w] and [out, c, k, k]."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, weight)


def vit(config, w, input):
    e, size = w.below("vit.embeddings"), config["patch_size"]
    x = convolution(input, e["patch_embeddings.projection.weight"], size)
    x = x.reshape(*x.shape[:2], -1).swapaxes(1, 2) + e["patch_embeddings.projection.bias"]
    x = np.concatenate([np.broadcast_to(e["cls_token"], (len(x), 1, x.shape[2])), x], 1) + e["position_embeddings"]
    for i in range(config["num_hidden_layers"]):
        layer = w.below(f"vit.encoder.layer.{i}")
        h, own = layer.layer_norm("layernorm_before", x, 1e-12), layer.below("attention.attention")
        q, k, v = (heads(own.linear(n, h), config["num_attention_heads"]) for n in ("query", "key", "value"))
        x = x + layer.linear("attention.output.dense", attention(q, k, v, True))
        h = layer.linear("intermediate.dense", layer.layer_norm("layernorm_after", x, 1e-12))
        x = x + layer.linear("output.dense", ACTIVATIONS["gelu"](h))
    return w.linear("classifier", w.layer_norm("vit.layernorm", x, 1e-12)[:, 0])


def resnet(config, w, input):
    """In evaluation mode."""

    def conv_norm(part, x, stride=1):
        weight, norm = part["convolution.weight"], part.below("normalization")
        x = convolution(x, weight, stride, weight.shape[2] // 2)
        scale = norm["weight"] / np.sqrt(norm["running_var"] + 1e-5)
        return (x - norm["running_mean"][:, None, None]) * scale[:, None, None] + norm["bias"][:, None, None]

    x = np.maximum(conv_norm(w.below("resnet.embedder.embedder"), input, 2), 0)
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2))
    bottleneck = config.get("layer_type", "bottleneck") == "bottleneck"
    for s, depth in enumerate(config["depths"]):
        for i in range(depth):
            block = w.below(f"resnet.encoder.stages.{s}.layers.{i}")
            stride = 2 if i == 0 and s > 0 else 1
            strides = (1, stride, 1) if bottleneck else (stride, 1)
            y = x
            for j, step in enumerate(strides):
                y = conv_norm(block.below(f"layer.{j}"), y, step)
                y = np.maximum(y, 0) if j + 1 < len(strides) else y
            shortcut = block.below("shortcut")
            x = np.maximum(y + (conv_norm(shortcut, x, stride) if "convolution.weight" in shortcut else x), 0)
    return w.linear("classifier.1", x.mean((2, 3)))


def t5(config, w, input, labels, attention_mask=None, **_):
    def bias_of(length, stack, both):
        own = config["relative_attention_num_buckets"] // (2 if both else 1)
        exact, table = own // 2, w[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = np.zeros((length, length, table.shape[1]))
        for i in range(length):
            for j in range(length):
                far = abs(j - i) if both else max(i - j, 0)
                b = far
                if far >= exact:
                    ratio = math.log(far / exact) / math.log(config["relative_attention_max_distance"] / exact)
                    b = min(exact + int(ratio * (own - exact) + 1e-9), own - 1)
                bias[i, j] = table[b + (own if both and j > i else 0)]
        return bias.transpose(2, 0, 1)[None]

    def attend(part, x, memory, seen, bias=0.0):
        q, k, v = (heads(part.linear(n, t), config["num_heads"]) for n, t in (("q", x), ("k", memory), ("v", memory)))
        return part.linear("o", attention(q, k, v, seen, 1.0, bias))

    def feed_forward(part, x):
        h = part.below("DenseReluDense")
        if "wi_0.weight" in h:
            return h.linear("wo", ACTIVATIONS["gelu_new"](h.linear("wi_0", x)) * h.linear("wi_1", x))
        return h.linear("wo", np.maximum(h.linear("wi", x), 0))

    def norm(part, x):
        return part.rms_norm("layer_norm", x, 1e-6)

    mask = np.ones_like(input) if attention_mask is None else attention_mask
    x = w["shared.weight"][input]
    bias, seen = bias_of(input.shape[1], "encoder", True), (mask == 1)[:, None, None, :]
    for i in range(config["num_layers"]):
        first, second = (w.below(f"encoder.block.{i}.layer.{j}") for j in range(2))
        h = norm(first, x)
        x = x + attend(first.below("SelfAttention"), h, h, seen, bias)
        x = x + feed_forward(second, norm(second, x))
    memory = w.rms_norm("encoder.final_layer_norm", x, 1e-6)
    before = np.concatenate([np.zeros((len(labels), 1), int), labels[:, :-1]], 1)
    x = w["shared.weight"][np.where(before == -100, 0, before)]
    bias, causal = bias_of(labels.shape[1], "decoder", False), np.tri(labels.shape[1], dtype=bool)
    for i in range(config.get("num_decoder_layers", config["num_layers"])):
        first, second, third = (w.below(f"decoder.block.{i}.layer.{j}") for j in range(3))
        h = norm(first, x)
        x = x + attend(first.below("SelfAttention"), h, h, causal, bias)
        x = x + attend(second.below("EncDecAttention"), norm(second, x), memory, seen)
        x = x + feed_forward(third, norm(third, x))
    x = w.rms_norm("decoder.final_layer_norm", x, 1e-6)
    return x * (config["d_model"] ** -0.5 if config.get("tie_word_embeddings", True) else 1) @ w["shared.weight"].T
