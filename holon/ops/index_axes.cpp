// What x[...] with index tensors and masks comes down to: three ops on neighbouring axes (read, add up, write), of
// which each rank does its part: what it holds of an indexed axis, or of the indices.
#include "holon/ops/index_axes.h"

#include "holon/base/context.h"
#include "holon/base/index.h"
#include "holon/internal_ops/cast.h"
#include "holon/internal_ops/index_axes.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/indexing.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/shape.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

using kernels::AxisPart;

// How the operands of a call are related: x [pre..., k indexed axes, post...], out [pre..., nb axes of the
// indices, post...].
struct Joined {
  int axis, k, nb;
  Dims shape;  // of the indices together
  int in_out(int a) const { return a < axis ? a : a - k + nb; }
};

// "take: ", or nothing for x[...].
std::string prefix(const AttrReader& c) {
  std::string op(c.text("caller"_attr));
  return op.empty() ? op : op + ": ";
}

Joined joined(const AttrReader& c, int ndim, std::span<const Meta> metas, size_t first) {
  Joined j{static_cast<int>(c.i("axis"_attr)), static_cast<int>(metas.size() - first), 0, {}};
  for (size_t i = first; i < metas.size(); ++i) {
    if (metas[i].dtype != int64 && metas[i].dtype != int32)
      fail(ErrorKind::kIndex, "{}an index tensor must hold integers or bools, got {} {}. Convert it by .long().",
           prefix(c), name(metas[i].dtype), metas[i].shape);
    j.shape = broadcast_shapes(j.shape, metas[i].shape, "index");
  }
  j.nb = j.shape.size();
  if (j.k == 0 || j.axis < 0 || j.axis + j.k > ndim)
    fail(ErrorKind::kIndex, "{}{} indices for a tensor of {} axes.", prefix(c), j.k, ndim);
  return j;
}

Dims out_shape(const Dims& x, const Joined& j) {
  Dims out;
  for (int a = 0; a < j.axis; ++a) out.push_back(x[a]);
  for (int64_t n : j.shape) out.push_back(n);
  for (int a = j.axis + j.k; a < x.size(); ++a) out.push_back(x[a]);
  return out;
}

void require_values(const AttrReader& c, const Dims& got, const Dims& wanted) {
  if (got != wanted)
    fail_value("{}the values have the shape {}; for these indices it must be {}.", prefix(c), got, wanted);
}

// The factor of axis b of the common shape, in the indices.
void label_indices(Rule& rule, std::span<const Meta> in, size_t first, const Joined& j, int b, int f) {
  for (size_t i = first; i < in.size(); ++i) {
    int at = b - (j.nb - in[i].shape.size());
    if (at >= 0 && (in[i].shape[at] != 1 || j.shape[b] == 1)) rule.in(i, at, f);
  }
}

std::vector<Tensor> indices_of(const Grad& g, size_t first, std::vector<Tensor> front) {
  for (size_t i = first; i < g.n_in(); ++i) front.push_back(g.x(i));
  return front;
}

SmallVec<const Array*, 8> index_arrays(const KernelCall& c, size_t first) {
  SmallVec<const Array*, 8> v;
  for (size_t i = first; i < c.n_in(); ++i) v.push_back(&c.in(i));
  return v;
}

SmallVec<AxisPart, 8> parts(const Dims& offset, const Dims& logical, int axis, size_t k) {
  SmallVec<AxisPart, 8> v;
  for (int a = axis; a < axis + static_cast<int>(k); ++a) v.push_back({offset[a], logical[a]});
  return v;
}

std::vector<Meta> with_x(std::span<const Meta> in, const Dims& x) {
  std::vector<Meta> metas(in.begin(), in.end());
  metas[0].shape = x;
  return metas;
}

Dims window_sizes(const AttrReader& c) { return Dims(c.ints("window"_attr)); }

}  // namespace

HOLON_OP(index_axes, "index_axes(Tensor[] tensors, int axis, bool wrap=True, str caller='') -> Tensor")
    .doc("tensors[0] read at index tensors for its axes from axis on; negative indices count from the end if wrap.")
    .hidden()
    .takes_float8()
    .infer([](Infer& c) {
      std::vector<Meta> metas;
      for (size_t i = 0; i < c.n_in(); ++i) metas.push_back(c.in(i));
      c.out(out_shape(c.shape(0), joined(c, c.ndim(0), metas, 1)), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      const Dims& x = r.in[0].shape;
      Joined j = joined(r, x.size(), r.in, 1);
      for (int a = 0; a < x.size(); ++a) {
        if (a >= j.axis && a < j.axis + j.k) continue;
        int f = r.rule.factor();
        r.rule.in(0, a, f);
        r.rule.out(0, j.in_out(a), f);
      }
      for (int b = 0; b < j.nb; ++b) {
        int f = r.rule.factor();
        r.rule.out(0, j.axis + b, f);
        label_indices(r.rule, r.in, 1, j, b, f);
      }
      // Of an indexed axis each rank reads what it holds, and zeros for the rest.
      if (r.in[0].dtype != boolean)
        for (int a = j.axis; a < j.axis + j.k; ++a) r.rule.in(0, a, r.rule.factor(true));
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      auto arrays = index_arrays(c, 1);
      int axis = static_cast<int>(c.i("axis"_attr));
      kernels::index_axes(c.in(0), axis, arrays, parts(c.offset_in(0), c.logical_in(0), axis, arrays.size()),
                          c.b("wrap"_attr), c.out(), prefix(c));
    })
    .saves({1, 2, 3, 4, 5, 6, 7, 8})
    .grad([](Grad& g) {
      g.dx(0, index_axes_backward(indices_of(g, 1, {g.dy()}), g.i("axis"_attr), g.in_shape(0), g.b("wrap"_attr)));
    });

HOLON_OP(index_axes_backward,
         "index_axes_backward(Tensor[] tensors, int axis, int[] shape, bool wrap=True, str caller='') -> Tensor")
    .doc("tensors[0] added up at index tensors in zeros of the given shape.")
    .hidden()
    .infer([](Infer& c) {
      std::vector<Meta> metas;
      for (size_t i = 0; i < c.n_in(); ++i) metas.push_back(c.in(i));
      Dims shape(c.ints("shape"_attr));
      Joined j = joined(c, shape.size(), metas, 1);
      require_values(c, c.shape(0), out_shape(shape, j));
      c.out(shape, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      const Dims& x = r.out[0].shape;
      Joined j = joined(r, x.size(), with_x(r.in, x), 1);
      for (int a = 0; a < x.size(); ++a) {
        int f = r.rule.factor();
        r.rule.out(0, a, f);
        if (a < j.axis || a >= j.axis + j.k) r.rule.in(0, j.in_out(a), f);
      }
      for (int b = 0; b < j.nb; ++b) {
        int f = r.rule.factor(true);
        r.rule.in(0, j.axis + b, f);
        label_indices(r.rule, r.in, 1, j, b, f);
      }
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      auto arrays = index_arrays(c, 1);
      int axis = static_cast<int>(c.i("axis"_attr));
      kernels::fill(c.out(), Scalar(0));
      kernels::index_put_axes(c.out(), axis, arrays, parts(c.offset_out(), c.logical_out(), axis, arrays.size()),
                              c.b("wrap"_attr), true, c.in(0), prefix(c));
    })
    .saves({1, 2, 3, 4, 5, 6, 7, 8})
    .grad([](Grad& g) { g.dx(0, index_axes(indices_of(g, 1, {g.dy()}), g.i("axis"_attr), g.b("wrap"_attr))); });

HOLON_OP(index_put_axes,
         "index_put_axes(Tensor[] tensors, int axis, bool accumulate=False, bool wrap=True, str caller='') -> Tensor")
    .doc("tensors[0] with the values tensors[1] set (or added) at index tensors for its axes from axis on.")
    .hidden()
    .infer([](Infer& c) {
      std::vector<Meta> metas;
      for (size_t i = 0; i < c.n_in(); ++i) metas.push_back(c.in(i));
      Joined j = joined(c, c.ndim(0), metas, 2);
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "x and the values have different dtypes",
                      "Convert one of them by to().");
      require_values(c, c.shape(1), out_shape(c.shape(0), j));
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      const Dims& x = r.in[0].shape;
      Joined j = joined(r, x.size(), r.in, 2);
      for (int a = 0; a < x.size(); ++a) {
        int f = r.rule.factor();
        r.rule.in(0, a, f);
        r.rule.out(0, a, f);
        if (a < j.axis || a >= j.axis + j.k) r.rule.in(1, j.in_out(a), f);
      }
      auto addends = [&](int b) {
        Signature s;
        for (size_t i = 0; i < r.in.size(); ++i) s.in.push_back(sbp::broadcast());
        s.in[0] = s.in[1] = sbp::partial_sum();
        s.out.push_back(sbp::partial_sum());
        if (b >= 0) {
          s.in[1] = sbp::split(j.axis + b);
          for (size_t i = 2; i < r.in.size(); ++i) {
            int at = b - (j.nb - r.in[i].shape.size());
            if (at >= 0 && r.in[i].shape[at] != 1) s.in[i] = sbp::split(at);
          }
        }
        r.rule.add(s);
      };
      addends(-1);
      for (int b = 0; r.b("accumulate"_attr) && b < j.nb; ++b) addends(b);
    })
    .kernel([](KernelCall& c) {
      auto arrays = index_arrays(c, 2);
      int axis = static_cast<int>(c.i("axis"_attr));
      kernels::copy(c.in(0), c.out());
      kernels::index_put_axes(c.out(), axis, arrays, parts(c.offset_out(), c.logical_out(), axis, arrays.size()),
                              c.b("wrap"_attr), c.b("accumulate"_attr), c.in(1), prefix(c));
    })
    .saves({2, 3, 4, 5, 6, 7, 8, 9})
    .grad([](Grad& g) {
      if (g.needs(1)) g.dx(1, index_axes(indices_of(g, 2, {g.dy()}), g.i("axis"_attr), g.b("wrap"_attr)));
      if (!g.needs(0)) return;
      if (g.b("accumulate"_attr)) return g.dx(0, g.dy());
      Tensor none = expand(number_beside(g.dy(), 0), g.in_shape(1));
      g.dx(0, index_put_axes(indices_of(g, 2, {g.dy(), none}), g.i("axis"_attr), false, g.b("wrap"_attr)));
    });

HOLON_OP(window_put, "window_put(Tensor x, Tensor value, int[] starts, int[] steps, int[] window) -> Tensor")
    .doc(
        "x with value, of the shape window, in place of every steps[a]-th element from starts[a] on along each axis a.")
    .hidden()
    .infer([](Infer& c) {
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "x and value have different dtypes",
                      "Convert one of them by to().");
      c.require(c.shape(1) == window_sizes(c), "value does not have the window's shape", "Expand it.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      // Each rank writes what it holds, of a window that is whole, or split alike where it covers the axis.
      for (int a = 0; a < r.in[0].shape.size(); ++a)
        for (bool split : {true, false}) {
          if (split && r.in[1].shape[a] != r.in[0].shape[a]) continue;
          int f = r.rule.factor();
          r.rule.in(0, a, f);
          r.rule.out(0, a, f);
          if (split) r.rule.in(1, a, f);
        }
    })
    .linear()
    .kernel([](KernelCall& c) {
      kernels::copy(c.in(0), c.out());
      kernels::window_put(c.out(), c.offset_out(), c.ints("starts"_attr), c.ints("steps"_attr), c.ints("window"_attr),
                          c.in(1), c.offset_in(1));
    })
    .grad([](Grad& g) {
      if (g.needs(1)) {
        Tensor dv = g.dy();
        for (int a = 0; a < dv.ndim(); ++a) {
          auto i = to_size(a);
          int64_t start = g.ints("starts"_attr)[i], step = g.ints("steps"_attr)[i], size = g.ints("window"_attr)[i];
          if (size != dv.shape()[a]) dv = slice(dv, a, start, size > 0 ? start + (size - 1) * step + 1 : start, step);
        }
        g.dx(1, dv);
      }
      if (g.needs(0)) {
        Dims sizes = window_sizes(g);
        Tensor none = expand(number_beside(g.dy(), 0), sizes);
        g.dx(0, window_put(g.dy(), none, Dims(g.ints("starts"_attr)), Dims(g.ints("steps"_attr)), sizes));
      }
    });

Tensor beside(const Tensor& x, const Array& values) {
  if (x.is_local()) return Tensor::local(kernels::on_device(values, x.device()));
  auto* spec = intern_spec(x.placement(), NdSbp::filled(x.nd_sbp().size(), sbp::broadcast()));
  bool member = x.placement().contains(Context::current().rank());
  return Tensor::global(member ? kernels::on_device(values, x.placement().device()) : Array(), values.shape,
                        values.dtype, spec);
}

Tensor number_beside(const Tensor& x, const Scalar& value) {
  FullOptions o{.dtype = x.dtype()};
  if (x.is_local()) o.device = x.device();
  if (x.is_global()) o.placement = x.placement(), o.sbp = NdSbp::filled(x.nd_sbp().size(), sbp::broadcast());
  return full({}, value, o);
}

Tensor bring_beside(const Tensor& x, const Tensor& t) {
  if (x.is_local()) {
    Tensor whole = t.is_local() ? t : t.full();
    return !x.device().is_host() && whole.device().is_host() ? copy_to_device(whole, x.device(), whole.device())
                                                             : whole;
  }
  if (t.is_global() && t.placement() == x.placement()) return t;
  return beside(x, t.full().array());
}

}  // namespace holon::ops
