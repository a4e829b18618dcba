"""Tables of rows that integers name."""

from .. import _C
from ..autograd import no_grad
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter, Where


class Embedding(Module):
    """A table [num_embeddings, embedding_dim] whose rows integers name. sbp S(0) splits the vocabulary.

    padding_idx: a row that starts as zeros and gets no gradient.
    """

    def __init__(
        self, num_embeddings, embedding_dim, padding_idx=None, *, placement=None, sbp=None, device=None, dtype=None
    ):
        super().__init__()
        self._keep(num_embeddings, embedding_dim, padding_idx)
        self.weight = Where(placement, sbp, device, dtype).parameter("weight", num_embeddings, embedding_dim)
        self.reset_parameters()

    def _keep(self, num_embeddings, embedding_dim, padding_idx):
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"Embedding: padding_idx is {padding_idx}, the table has {num_embeddings} rows.")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx if padding_idx is None or padding_idx >= 0 else padding_idx + num_embeddings

    @classmethod
    def from_pretrained(cls, embeddings, freeze=True, padding_idx=None):
        """Returns a table over the memory of embeddings [rows, width], which is learned unless freeze."""
        if embeddings.ndim != 2:
            raise ValueError(
                f"Embedding.from_pretrained: embeddings must be [rows, width]; found {list(embeddings.shape)}."
            )
        self = cls.__new__(cls)
        Module.__init__(self)
        self._keep(*embeddings.shape, padding_idx)
        self.weight = Parameter(embeddings, requires_grad=not freeze)
        return self

    def reset_parameters(self):
        """Draws from the standard normal distribution."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight.mul_(self._without_padding())

    def _without_padding(self):
        # [rows, 1]: 0 for the row of padding, 1 elsewhere.
        weight = self.weight
        where = (
            {"placement": weight.placement, "sbp": [_C.sbp.broadcast] * len(weight.sbp)}
            if weight.is_global
            else {"device": weight.device}
        )
        rows = _C.ops["arange"](self.num_embeddings, **where)
        return (rows != self.padding_idx).to(weight.dtype).reshape(-1, 1)

    def forward(self, indices):
        return F.embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self):
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
