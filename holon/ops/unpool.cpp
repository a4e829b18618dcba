// The places of a max pool's results filled with other values, and zeros elsewhere. Batch and channels split.
#include "holon/ops/unpool.h"
#include "holon/base/index.h"
#include "holon/internal_ops/index.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "holon/ops/windows.h"

namespace holon::ops {
namespace {

// Zeros where t is, split as t where that is along the first two axes.
Tensor zeros_along(const Tensor& t, const Dims& shape) {
  ZerosOptions o{.dtype = t.dtype()};
  if (t.is_local()) {
    o.device = t.device();
    return zeros(shape, o);
  }
  SmallVec<Sbp, 4> sbps;
  for (int a = 0; a < t.nd_sbp().size(); ++a)
    sbps.push_back(t.nd_sbp()[a].is_split() && t.nd_sbp()[a].axis < 2 ? t.nd_sbp()[a] : sbp::broadcast());
  o.placement = t.placement();
  o.sbp = NdSbp(std::span<const Sbp>(sbps));
  return zeros(shape, o);
}

void unpool(BodyCall& c, int n) {
  const char* op = c.op().name();
  Tensor x = c.in(0), index = c.in(1);
  if (x.ndim() != n + 2 && x.ndim() != n + 1)
    fail_value("{}: x is {}; it takes {} axes, or {} without the batch.", op, x.shape(), n + 2, n + 1);
  if (index.shape() != x.shape())
    fail_value("{}: indices has shape {}, x {}. Pass those that the max pool gave, of the same shape.", op,
               index.shape(), x.shape());
  if (index.dtype() != int64)
    fail_type("{}: indices is {}; it must be int64, as the max pools give it.", op, name(index.dtype()));
  const Dims kernel = per_axis(c, "kernel_size"_attr, n, 1), padding = per_axis(c, "padding"_attr, n, 0);
  const Dims stride =
      c.has("stride"_attr) && !c.ints("stride"_attr).empty() ? per_axis(c, "stride"_attr, n, 1) : kernel;
  Dims size;
  for (int a = 0; a < n; ++a) size.push_back((x.size(a - n) - 1) * stride[a] - 2 * padding[a] + kernel[a]);
  if (c.has("output_size"_attr) && !c.ints("output_size"_attr).empty()) {
    // With the leading axes, too, as a shape is.
    Dims given(c.ints("output_size"_attr));
    while (given.size() > n) given.erase(0);
    bool fits = given.size() == n;
    for (int a = 0; fits && a < n; ++a) fits = given[a] > size[a] - stride[a] && given[a] < size[a] + stride[a];
    if (!fits)
      fail_value("{}: output_size is {}; x {} comes from a size around {} that differs from it by less than the stride "
                 "{}.",
                 op, Dims(c.ints("output_size"_attr)), x.shape(), size, stride);
    size = given;
  }
  for (int64_t s : size)
    if (s < 1) fail_value("{}: the result would have the sizes {}. Check kernel_size, stride and padding.", op, size);
  const bool batched = x.ndim() == n + 2;
  if (!batched) x = unsqueeze(x, 0), index = unsqueeze(index, 0);
  const Dims lead{x.shape()[0], x.shape()[1]};
  Dims flat = lead, whole = lead, spread = lead;
  flat.push_back(1), spread.push_back(1);
  for (int a = 0; a < n; ++a) {
    flat[2] *= x.shape()[2 + a];
    if (__builtin_mul_overflow(spread[2], size[a], &spread[2]))
      fail_value("{}: the result would have the sizes {}, more elements than a 64-bit number counts.", op, size);
    whole.push_back(size[a]);
  }
  Tensor y = scatter_along(zeros_along(x, spread), reshape(index, flat), reshape(x, flat), 2, "set", op);
  y = reshape(y, whole);
  c.out.push_back(batched ? y : squeeze(y, Dims{0}));
}

}  // namespace

HOLON_OP(max_unpool1d,
         "max_unpool1d(Tensor x, Tensor indices, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, int[]? "
         "output_size=None) -> Tensor")
    .doc("Zeros with x [n, c, l] at the places that max_pool1d gave as indices; output_size: the length before the "
         "pool, where several have the same result.",
         "max_unpool1d(ones(1, 1, 2), tensor([[[1, 2]]]), 2)")
    .function_only()
    .body([](BodyCall& c) { unpool(c, 1); });
HOLON_OP(max_unpool2d,
         "max_unpool2d(Tensor x, Tensor indices, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, int[]? "
         "output_size=None) -> Tensor")
    .doc("Zeros with x [n, c, h, w] at the places in their planes that max_pool2d gave as indices; output_size: as of "
         "max_unpool1d.",
         "max_unpool2d(ones(1, 1, 1, 1), tensor([[[[3]]]]), 2)")
    .function_only()
    .body([](BodyCall& c) { unpool(c, 2); });
HOLON_OP(max_unpool3d,
         "max_unpool3d(Tensor x, Tensor indices, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, int[]? "
         "output_size=None) -> Tensor")
    .doc("Zeros with x [n, c, d, h, w] at the places in their volumes that max_pool3d gave as indices; output_size: as "
         "of max_unpool1d.",
         "max_unpool3d(ones(1, 1, 1, 1, 1), tensor([[[[[7]]]]]), 2).shape")
    .function_only()
    .body([](BodyCall& c) { unpool(c, 3); });

}  // namespace holon::ops
