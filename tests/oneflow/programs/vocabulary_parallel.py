"""An embedding whose rows are split over the ranks, logits split by classes, and the loss on them:
no rank has the whole table."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn

VOCAB, DIM, BATCH, LENGTH, STEPS = 50, 8, 4, 5, 5
P = flow.placement.all("cpu")
sbp = flow.sbp


class VocabEmbedding(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, init_method=nn.init.xavier_normal_):
        super().__init__()
        self.weight = nn.Parameter(
            flow.empty((num_embeddings, embedding_dim), dtype=flow.float32, placement=P, sbp=[sbp.split(0)])
        )
        init_method(self.weight)

    def forward(self, ids):
        embeddings = flow._C.gather(self.weight, ids, axis=0)
        return embeddings.to_global(sbp=sbp.broadcast)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = VocabEmbedding(VOCAB, DIM)
        self.hidden = nn.Linear(DIM, DIM).to_global(P, sbp.broadcast)

    def forward(self, ids, labels):
        x = flow.tanh(self.hidden(self.embedding(ids)))
        logits = flow._C.matmul(x, self.embedding.weight, transpose_b=True)
        assert logits.sbp == (sbp.split(2),) or P.ranks.size == 1, logits.sbp
        losses = flow._C.sparse_softmax_cross_entropy(logits.view(-1, VOCAB), labels.view(-1))
        return losses.mean(), logits


def main():
    flow.manual_seed(0)
    world, rank = flow.env.get_world_size(), flow.env.get_rank()
    model = Model()
    rows = model.embedding.weight.to_local().shape[0]
    assert rows == VOCAB // world + (rank < VOCAB % world)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.05)
    rng = np.random.default_rng(1)
    results = []
    for step in range(STEPS):
        ids = flow.tensor(rng.integers(0, VOCAB, (BATCH, LENGTH)), placement=P, sbp=sbp.broadcast)
        labels = (ids + 1) % VOCAB
        loss, logits = model(ids, labels)
        if step == 0:
            table = model.embedding.weight.numpy()
            x = np.tanh(table[ids.numpy()] @ model.hidden.weight.numpy().T + model.hidden.bias.numpy())
            z = x @ table.T
            z = z - z.max(-1, keepdims=True)
            logp = z - np.log(np.exp(z).sum(-1, keepdims=True))
            expected = -np.take_along_axis(logp, labels.numpy()[..., None], -1).mean()
            np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5)
        loss.backward()
        assert model.embedding.weight.grad.sbp == (sbp.split(0),)
        optimizer.step()
        optimizer.zero_grad()
        results.append(loss.item())
    # nn.Embedding, too, takes a split table, and the loss of nn split logits.
    layer = nn.Embedding(VOCAB, DIM).to_global(placement=P, sbp=sbp.split(0))
    ids = flow.tensor([[1, 49], [0, 25]], placement=P, sbp=sbp.broadcast)
    np.testing.assert_array_equal(layer(ids).numpy(), layer.weight.numpy()[ids.numpy()])
    print("result", *(f"{v:.5f}" for v in results))


if __name__ == "__main__":
    main()
