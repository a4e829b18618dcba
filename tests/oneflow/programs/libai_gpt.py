"""A GPT in the manner of LiBai: a module of helpers says which ranks a layer has and translates sbps of a 2-D grid to
the grid at hand; layers are made of them; one class of graphs serves training (mixed precision, accumulation,
recomputation, ZeRO, stages) and evaluation.

Data, tensor and pipeline parallel sizes follow from the number of ranks. The losses are the same for all of them.
"""

import logging
import math

import numpy as np
import oneflow as flow
from oneflow import nn
from oneflow.nn import init

logger = logging.getLogger(__name__)
sbp = flow.sbp
VOCAB, HIDDEN, HEADS, LAYERS, LENGTH, BATCH = 41, 16, 4, 2, 6, 8


class Grid:
    """data x tensor x pipeline."""

    def __init__(self):
        world = flow.env.get_world_size()
        self.tensor = 2 if world >= 2 else 1
        self.pipeline = 1
        self.data = world // (self.tensor * self.pipeline)

    def set(self, data, tensor, pipeline):
        assert data * tensor * pipeline == flow.env.get_world_size()
        self.data, self.tensor, self.pipeline = data, tensor, pipeline

    def stage(self, layer):
        layer = layer % LAYERS
        return layer * self.pipeline // LAYERS

    def placement(self, layer, device_type="cuda"):
        if not flow.cuda.is_available() and device_type == "cuda":
            device_type = "cpu"
        each = self.data * self.tensor
        first = self.stage(layer) * each
        ranks = np.arange(first, first + each)
        if self.data > 1 and self.tensor > 1:
            ranks = ranks.reshape(self.data, self.tensor)
        return flow.placement(device_type, ranks.tolist())

    def nd_sbp(self, pair):
        assert len(pair) == 2 and all(isinstance(s, flow.sbp.sbp) for s in pair)
        if self.data > 1 and self.tensor > 1:
            return pair
        if self.data > 1:
            return pair[:1]
        if self.tensor > 1:
            return pair[1:]
        return [flow.sbp.broadcast]


grid = Grid()
BB = [sbp.broadcast, sbp.broadcast]


def hidden_sbp():
    return grid.nd_sbp([sbp.split(0), sbp.broadcast])


def same(a, b):
    return len(a) == len(b) and all(x == y for x, y in zip(a, b))


def parameter(shape, pair, layer, method=None):
    p = nn.Parameter(flow.empty(shape, dtype=flow.float32, placement=grid.placement(layer), sbp=grid.nd_sbp(pair)))
    (method or init.zeros_)(p)
    return p


def init_method(std):
    return lambda t: init.normal_(t, mean=0.0, std=std)


class VocabEmbedding(nn.Module):
    def __init__(self, n, dim, method, amp_enabled=False):
        super().__init__()
        self.amp_enabled = amp_enabled
        self.weight = parameter((n, dim), [sbp.broadcast, sbp.split(0)], 0, method)

    def forward(self, ids):
        weight = flow._C.amp_white_identity(self.weight) if self.amp_enabled else self.weight
        return flow._C.gather(weight, ids, axis=0).to_global(sbp=hidden_sbp())


class Embedding(nn.Module):
    def __init__(self, n, dim, method):
        super().__init__()
        self.weight = parameter((n, dim), BB, 0, method)

    def forward(self, ids):
        return flow._C.gather(self.weight, ids, axis=0)


class Linear1D(nn.Module):
    def __init__(self, i, o, parallel, method, skip_bias_add=False, *, layer_idx=0):
        super().__init__()
        self.skip_bias_add = skip_bias_add
        weight, bias = {
            "col": ([sbp.broadcast, sbp.split(1)], [sbp.broadcast, sbp.split(0)]),
            "row": ([sbp.broadcast, sbp.split(0)], BB),
            "data": (BB, BB),
        }[parallel]
        self.weight = parameter((i, o), weight, layer_idx, method)
        self.bias = parameter((o,), bias, layer_idx)

    def forward(self, x):
        if same(self.weight.sbp, grid.nd_sbp([sbp.broadcast, sbp.split(1)])):
            if self.weight.sbp[-1] == sbp.split(1):
                x = x.to_global(sbp=x.sbp[:-1] + (sbp.broadcast,))
            x = x.to_global(grad_sbp=x.sbp)
            x = flow.matmul(x, self.weight)
        elif same(self.weight.sbp, grid.nd_sbp([sbp.broadcast, sbp.split(0)])):
            if self.weight.sbp[-1] == sbp.split(0):
                x = x.to_global(sbp=x.sbp[:-1] + (sbp.split(x.ndim - 1),))
                out = x.sbp[:-1] + (sbp.broadcast,)
            else:
                out = x.sbp
            x = flow.matmul(x, self.weight).to_global(sbp=out)
        else:
            x = flow.matmul(x.to_global(grad_sbp=x.sbp), self.weight)
        return (x, self.bias) if self.skip_bias_add else x + self.bias


class LayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-5, *, layer_idx=0):
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = parameter((dim,), BB, layer_idx, init.ones_)
        self.bias = parameter((dim,), BB, layer_idx)

    def forward(self, x):
        axis = x.ndim - 1
        return flow._C.layer_norm_affine(
            x, self.weight, self.bias, begin_norm_axis=axis, begin_params_axis=axis, epsilon=self.eps
        )


class Attention(nn.Module):
    def __init__(self, dropout, *, layer_idx=0, fused=True):
        super().__init__()
        self.dropout_prob, self.fused, self.head = dropout, fused, HIDDEN // HEADS
        self.coeff = layer_idx + 1
        self.norm_factor = 1.0 / math.sqrt(float(self.head)) / self.coeff
        self.dropout = nn.Dropout(p=dropout)
        self.query_key_value = Linear1D(HIDDEN, 3 * HIDDEN, "col", init_method(0.1), layer_idx=layer_idx)
        self.dense = Linear1D(
            HIDDEN, HIDDEN, "row", init_method(0.1 / math.sqrt(2 * LAYERS)), skip_bias_add=True, layer_idx=layer_idx
        )

    def forward(self, x, mask=None, past_key_value=None, use_cache=False):
        if mask is not None:
            mask = mask.to_global(placement=x.placement)
        bsz = x.size(0)
        qkv = self.query_key_value(x).view(bsz, -1, HEADS, 3 * self.head).permute(0, 2, 1, 3)
        q, k, v = flow.chunk(qkv, chunks=3, dim=-1)
        if past_key_value is not None:
            past_key, past_value = past_key_value
            k = flow.cat((past_key.type_as(k), k), dim=2)
            v = flow.cat((past_value.type_as(v), v), dim=2)
        scores = flow.matmul(q, k, transpose_b=True, alpha=self.norm_factor)
        if self.fused and mask is not None:
            weights = flow._C.fused_scale_mask_softmax_dropout(
                scores, mask, fill_value=-10000.0, scale=self.coeff, p=self.dropout_prob
            )[0]
        else:
            scores = scores * self.coeff
            if mask is not None:
                scores = flow.mul(scores, mask)
                scores = scores - 10000.0 * (1 - mask)
            weights = self.dropout(flow.softmax(scores, dim=-1))
        context = flow.matmul(weights, v).transpose(1, 2)
        output, bias = self.dense(context.flatten(2))
        output = flow._C.fused_bias_add_dropout(output, bias, p=self.dropout_prob, axis=output.ndim - 1)
        return (output, (k, v)) if use_cache else output


class MLP(nn.Module):
    def __init__(self, *, layer_idx=0):
        super().__init__()
        self.dense_h_to_4h = Linear1D(
            HIDDEN, 4 * HIDDEN, "col", init_method(0.1), skip_bias_add=True, layer_idx=layer_idx
        )
        self.dense_4h_to_h = Linear1D(4 * HIDDEN, HIDDEN, "row", init_method(0.1), layer_idx=layer_idx)

    def forward(self, x):
        x, bias = self.dense_h_to_4h(x)
        return self.dense_4h_to_h(flow._C.fused_bias_add_gelu(x, bias, axis=x.ndim - 1))


class TransformerLayer(nn.Module):
    def __init__(self, dropout, *, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.input_layernorm = LayerNorm(HIDDEN, layer_idx=layer_idx)
        self.self_attention = Attention(dropout, layer_idx=layer_idx)
        self.post_attention_layernorm = LayerNorm(HIDDEN, layer_idx=layer_idx)
        self.mlp = MLP(layer_idx=layer_idx)

    def forward(self, x, mask=None, past=None, use_cache=False):
        x = x.to_global(placement=grid.placement(self.layer_idx))
        attention = self.self_attention(self.input_layernorm(x), mask, past, use_cache)
        if use_cache:
            attention, present = attention
        x = x + attention
        x = x + self.mlp(self.post_attention_layernorm(x))
        return (x, present) if use_cache else x


class LMLogits(nn.Module):
    def forward(self, x, table):
        table = table.to_global(placement=x.placement)
        return flow._C.matmul(x.to_global(grad_sbp=x.sbp), table, transpose_b=True)


class GPT(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.token_embeddings = VocabEmbedding(VOCAB, HIDDEN, init_method(0.1), amp_enabled=True)
        self.position_embeddings = Embedding(LENGTH, HIDDEN, init_method(0.1))
        self.layers = nn.ModuleList([TransformerLayer(dropout, layer_idx=i) for i in range(LAYERS)])
        self.layernorm_f = LayerNorm(HIDDEN, layer_idx=-1)
        self.lm_head = LMLogits()

    def forward(self, input_ids, past=None, use_cache=False):
        input_ids = input_ids.to_global(placement=grid.placement(0))
        begin, length = (0 if past is None else past[0][0].size(2)), input_ids.size(1)
        ids = flow.arange(
            begin, begin + length, dtype=flow.int64, placement=grid.placement(0), sbp=grid.nd_sbp(BB)
        ).unsqueeze(0)
        x = self.token_embeddings(input_ids) + self.position_embeddings(ids)
        mask = None
        if length > 1:
            mask = flow.tril(
                flow.ones((1, 1, length, length), dtype=flow.int8, placement=grid.placement(0), sbp=grid.nd_sbp(BB))
            )
        presents = []
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, past[i] if past else None, use_cache)
            if use_cache:
                x, present = x
                presents.append(present)
        logits = self.lm_head(self.layernorm_f(x), self.token_embeddings.weight)
        return (logits, presents) if use_cache else logits


class GPTForPreTraining(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.model = GPT(dropout)

    def forward(self, input_ids, labels=None):
        logits = self.model(input_ids)
        if labels is None:
            return {"prediction_scores": logits}
        labels = labels.to_global(placement=logits.placement)
        loss = flow._C.sparse_softmax_cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        # data parallel partial sums of a mean are no mean over all: the mean is of the whole
        loss = loss.to_global(sbp=grid.nd_sbp([sbp.split(0), sbp.broadcast]))
        return {"lm_loss": loss.mean()}

    @staticmethod
    def set_activation_checkpoint(model):
        for block in model.modules():
            if isinstance(block.to(nn.Module), TransformerLayer):
                block.to(nn.graph.GraphModule).activation_checkpointing = True

    @staticmethod
    def set_pipeline_stage_id(model):
        for block in model.modules():
            module = block.to(nn.Module)
            if isinstance(module, (VocabEmbedding, Embedding)):
                block.to(nn.graph.GraphModule).set_stage(grid.stage(0), grid.placement(0))
            elif isinstance(module, TransformerLayer):
                block.to(nn.graph.GraphModule).set_stage(grid.stage(module.layer_idx), grid.placement(module.layer_idx))
            elif isinstance(module, LMLogits):
                block.to(nn.graph.GraphModule).set_stage(grid.stage(-1), grid.placement(-1))
        model.model.layernorm_f.to(nn.graph.GraphModule).set_stage(grid.stage(-1), grid.placement(-1))


class GraphBase(nn.Graph):
    def __init__(
        self,
        model,
        optimizer=None,
        lr_scheduler=None,
        fp16=False,
        checkpointing=False,
        accumulate=1,
        zero_stage=0,
        is_train=True,
    ):
        super().__init__()
        self.model, self.is_train = model, is_train
        if is_train:
            self.add_optimizer(optimizer, lr_sch=lr_scheduler)
            if fp16:
                self.config.enable_amp(True)
                self.set_grad_scaler(
                    flow.amp.GradScaler(init_scale=2**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000)
                )
            if accumulate > 1:
                self.config.set_gradient_accumulation_steps(accumulate)
            if checkpointing:
                type(self.model.to(nn.Module)).set_activation_checkpoint(self.model)
            if zero_stage:
                self.config.enable_zero(True, stage=zero_stage)
            type(self.model.to(nn.Module)).set_pipeline_stage_id(self.model)
        self.config.allow_fuse_add_to_output(True)
        self.config.allow_fuse_model_update_ops(True)
        self.config.allow_fuse_cast_scale(True)
        if grid.tensor > 1 or grid.pipeline > 1:
            flow.boxing.nccl.enable_use_compute_stream(True)

    def build(self, **kwargs):
        if not self.is_train:
            return self.model(**kwargs)
        logger.info("the training graph is compiled")
        losses = self.model(**kwargs)
        sum(losses.values()).backward()
        return {
            k: v.to_global(
                placement=flow.placement("cpu", ranks=[0] if v.placement.ranks.ndim == 1 else [[0]]),
                sbp=grid.nd_sbp(BB),
            )
            for k, v in losses.items()
        }


def ttol(tensor):
    """Global to local: the value on the ranks that hold it."""
    if tensor.is_global:
        tensor = tensor.to_global(sbp=grid.nd_sbp(BB)).to_local()
    return tensor


def batches(steps):
    rng = np.random.default_rng(4)
    for _ in range(steps):
        start = rng.integers(0, VOCAB, (BATCH, 1))
        ids = (start + np.arange(LENGTH + 1)) % VOCAB
        yield {
            name: flow.tensor(a, dtype=flow.long)
            .to_global(placement=flow.placement.all("cpu"), sbp=sbp.broadcast)
            .to_global(placement=grid.placement(layer), sbp=grid.nd_sbp([sbp.split(0), sbp.broadcast]))
            for name, a, layer in (("input_ids", ids[:, :-1], 0), ("labels", ids[:, 1:], -1))
        }


def parts():
    flow.manual_seed(1234)
    model = GPTForPreTraining()
    decay = [p for n, p in model.named_parameters() if p.ndim > 1]
    rest = [p for n, p in model.named_parameters() if p.ndim == 1]
    optimizer = flow.optim.AdamW(
        [
            {"params": decay, "weight_decay": 0.01, "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0},
            {"params": rest, "weight_decay": 0.0, "clip_grad_max_norm": 1.0, "clip_grad_norm_type": 2.0},
        ],
        lr=0.02,
    )
    schedule = flow.optim.lr_scheduler.WarmupLR(
        flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10), warmup_factor=0.5, warmup_iters=2
    )
    return model, optimizer, schedule


def train_eager(steps):
    model, optimizer, schedule = parts()
    model.train()
    losses = []
    for batch in batches(steps):
        loss_dict = model(**batch)
        sum(loss_dict.values()).backward()
        optimizer.clip_grad()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(float(loss_dict["lm_loss"].numpy()))
    return model, losses


def train_graph(steps, **options):
    model, optimizer, schedule = parts()
    model.train()
    graph = GraphBase(model, optimizer, schedule, **options)
    losses = []
    for batch in batches(steps):
        loss_dict = {k: v.mean() for k, v in graph(**batch).items()}
        losses.append(float(loss_dict["lm_loss"].numpy()))
    return losses


def greedy(model, prompt, n, cached):
    ids, past = prompt, None
    for _ in range(n):
        if cached:
            logits, past = model.model(ids if past is None else ids[:, -1:], past=past, use_cache=True)
        else:
            logits = model.model(ids)
        logits = logits.to_global(placement=grid.placement(0), sbp=grid.nd_sbp(BB))
        following = flow.argmax(logits[:, -1, :], dim=-1).unsqueeze(1)
        ids = flow.cat((ids, following), dim=1)
    return ids


def main():
    steps = 4
    grids = {1: [(1, 1, 1)], 2: [(1, 2, 1), (2, 1, 1), (1, 1, 2)], 4: [(2, 2, 1), (1, 2, 2), (2, 1, 2)]}[
        flow.env.get_world_size()
    ]
    results = []
    for data, tensor, pipeline in grids:
        grid.set(data, tensor, pipeline)
        model, losses = train_eager(steps)
        model.eval()
        prompt = flow.tensor([[3, 4], [9, 10]], placement=grid.placement(0), sbp=grid.nd_sbp(BB))
        with flow.no_grad():
            tokens = greedy(model, prompt, 3, False)
            assert greedy(model, prompt, 3, True).numpy().tolist() == tokens.numpy().tolist()
        for options in ({}, {"accumulate": 2}, {"checkpointing": True}, {"zero_stage": 2}):
            np.testing.assert_allclose(train_graph(steps, **options), losses, rtol=2e-3, err_msg=str((grids, options)))
        mixed = train_graph(steps, fp16=True)
        np.testing.assert_allclose(mixed, losses, rtol=0.05)
        scores = GraphBase(model, is_train=False)(input_ids=prompt)["prediction_scores"]
        assert scores.shape == (2, 2, VOCAB)
        results.append(losses)
    for losses in results:
        np.testing.assert_allclose(losses, results[0], rtol=1e-3)
    assert results[0][-1] < results[0][0]
    print("result", *(f"{v:.4f}" for v in results[0]))


if __name__ == "__main__":
    main()
