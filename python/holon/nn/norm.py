"""Normalisation: to mean 0 and variance 1 over the batch, a sample, a group of channels or the last axes."""

from .. import _C
from ..autograd import no_grad
from . import functional as F
from . import init
from .module import Module
from .options import REQUIRED, FunctionModule
from .parameter import Where


class _Affine(Module):
    """What norms share that multiply by a weight and add a bias."""

    def _make(self, where, shape, weight, bias):
        self.register_parameter("weight", where.parameter("weight", *shape) if weight else None)
        self.register_parameter("bias", where.parameter("bias", *shape) if bias else None)

    def reset_parameters(self):
        """Sets weight to 1 and bias to 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if getattr(self, "bias", None) is not None:
            init.zeros_(self.bias)


class _Statistics(_Affine):
    """Norms over the batch or a sample, which may keep running means and variances of the channels."""

    _ndims: tuple[int, ...] = ()

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        *,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        where = Where(placement, sbp, device, dtype)
        self._make(where, (num_features,), affine, affine)
        for name, value in (("running_mean", 0), ("running_var", 1)):
            self.register_buffer(name, where.buffer(name, value, num_features) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", where.counter() if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self):
        """Forgets what was seen: mean 0, variance 1."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self):
        """Sets weight to 1 and bias to 0, and forgets what was seen."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check(self, x):
        if x.ndim not in self._ndims:
            raise ValueError(
                f"{type(self).__name__}: x must have {' or '.join(map(str, self._ndims))} axes; found {list(x.shape)}."
            )

    def extra_repr(self):
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Statistics):
    """Each channel (axis 1) to mean 0 and variance 1 over the logical batch, whatever ranks hold of it;
    then * weight + bias.

    In evaluation by running_mean and running_var,
    into which each batch of training goes with the share momentum (None: all batches count alike).
    """

    def forward(self, x):
        self._check(x)
        tracks = self.training and self.track_running_stats
        share = self.momentum or 0.0
        if tracks:
            self.num_batches_tracked.add_(1)
            if self.momentum is None and _C.capture_open():
                return self._counted(x)
            if self.momentum is None:
                share = 1 / self.num_batches_tracked.item()
        by_batch = self.training or self.running_mean is None
        mean, var = (self.running_mean, self.running_var) if tracks or not by_batch else (None, None)
        return F.batch_norm(x, mean, var, self.weight, self.bias, by_batch, share, self.eps)

    def _counted(self, x):
        """In a graph: the number of batches is another one in each step, so that the share is a tensor."""
        running = self.running_mean, self.running_var
        with no_grad():
            before = [r.clone() for r in running]
        y = F.batch_norm(x, *running, self.weight, self.bias, True, 1.0, self.eps)  # they become the batch's
        with no_grad():
            for r, old in zip(running, before):
                r.copy_(old + (r - old) / self.num_batches_tracked)
        return y


class BatchNorm1d(_BatchNorm):
    """Each channel of [n, c] or [n, c, l] to mean 0 and variance 1 over the batch."""

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Each channel of [n, c, h, w] to mean 0 and variance 1 over the batch."""

    _ndims = (4,)


class BatchNorm3d(_BatchNorm):
    """Each channel of [n, c, d, h, w] to mean 0 and variance 1 over the batch."""

    _ndims = (5,)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of any number of axes. Every batch norm here is synchronous on global tensors:
    the statistics are those of the logical batch."""

    _ndims = (2, 3, 4, 5)

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """Returns the module: on global tensors its batch norms are synchronous as they are."""
        return module


class _InstanceNorm(_Statistics):
    """Each channel of each sample to mean 0 and variance 1."""

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=False,
        track_running_stats=False,
        *,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            placement=placement,
            sbp=sbp,
            device=device,
            dtype=dtype,
        )

    def forward(self, x):
        self._check(x)
        one = x.ndim == self._ndims[0]  # a sample without an axis for the batch
        by_sample = self.training or not self.track_running_stats
        result = F.instance_norm(
            x.unsqueeze(0) if one else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            by_sample,
            self.momentum or 0.0,
            self.eps,
        )
        return result.squeeze(0) if one else result


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each sample of [n, c, l] or [c, l] to mean 0 and variance 1."""

    _ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each sample of [n, c, h, w] or [c, h, w] to mean 0 and variance 1."""

    _ndims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each sample of [n, c, d, h, w] or [c, d, h, w] to mean 0 and variance 1."""

    _ndims = (4, 5)


class GroupNorm(_Affine):
    """Each of num_groups groups of channels (axis 1) of each sample to mean 0 and variance 1; then * weight + bias."""

    def __init__(
        self, num_groups, num_channels, eps=1e-5, affine=True, *, placement=None, sbp=None, device=None, dtype=None
    ):
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_groups} groups do not divide {num_channels} channels.")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._make(Where(placement, sbp, device, dtype), (num_channels,), affine, affine)
        self.reset_parameters()

    def forward(self, x):
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


def _sizes(normalized_shape):
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(_Affine):
    """Mean 0 and variance 1 over the last axes; then * weight + bias. sbp is that of weight and bias."""

    def __init__(
        self,
        normalized_shape,
        eps=1e-5,
        elementwise_affine=True,
        bias=True,
        *,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._make(
            Where(placement, sbp, device, dtype), self.normalized_shape, elementwise_affine, elementwise_affine and bias
        )
        self.reset_parameters()

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(_Affine):
    """x over the root of its mean square over the last axes; then * weight. eps None: the dtype's smallest step."""

    def __init__(
        self, normalized_shape, eps=None, elementwise_affine=True, *, placement=None, sbp=None, device=None, dtype=None
    ):
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        where = Where(placement, sbp, device, dtype)
        self.register_parameter(
            "weight", where.parameter("weight", *self.normalized_shape) if elementwise_affine else None
        )
        self.reset_parameters()

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LocalResponseNorm(FunctionModule):
    """x over (k + alpha * mean of the squares of size channels around it) ** beta."""

    _function, _options = "local_response_norm", {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "k": 1.0}

    def extra_repr(self):
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
