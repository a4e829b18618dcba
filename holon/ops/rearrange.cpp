// Shapes, continued: axes moved and turned, repetition, grids, diagonals, windows. Most are made of views; those with a
// kernel are linear, so partial sums pass.
#include <algorithm>
#include <cmath>

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/internal_ops/rearrange.h"
#include "holon/kernels/copy.h"
#include "holon/ops/axes.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/rearrange.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"
#include "holon/ops/whole.h"

namespace holon::ops {

HOLON_OP(movedim, "movedim(Tensor x, int[] source, int[] destination) -> Tensor")
    .doc("The axes source moved to the positions destination, the others in their order; a view.",
         "movedim(ones(2, 3), 0, 1)")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      auto source = c.ints("source"_attr), destination = c.ints("destination"_attr);
      if (source.size() != destination.size())
        fail_value("movedim: source names {} axes, destination {}. Name one position for each axis.", source.size(),
                   destination.size());
      uint32_t from = axes_mask(c, "source"_attr, x.ndim());
      axes_mask(c, "destination"_attr, x.ndim());
      Dims order = Dims::filled(x.ndim(), -1);
      for (size_t i = 0; i < source.size() && x.ndim() > 0; ++i)  // a 0-d tensor takes axis 0, and has none
        order[normalize_axis(destination[i], x.ndim(), "movedim")] = normalize_axis(source[i], x.ndim(), "movedim");
      int next = 0;
      for (auto& o : order) {
        if (o >= 0) continue;
        while (from >> next & 1) ++next;
        o = next++;
      }
      c.out.push_back(permute(x, order));
    });
HOLON_ALIAS(moveaxis, movedim);

HOLON_OP(fliplr, "fliplr(Tensor x) -> Tensor")
    .doc("x with its second axis reversed.", "fliplr(ones(2, 3))")
    .body([](BodyCall& c) {
      if (c.in(0).ndim() < 2) fail_value("fliplr: x is {}; it needs two axes. Use flip().", c.in(0).shape());
      c.out.push_back(flip(c.in(0), {1}));
    });
HOLON_OP(flipud, "flipud(Tensor x) -> Tensor")
    .doc("x with its first axis reversed.", "flipud(ones(2, 3))")
    .body([](BodyCall& c) {
      if (c.in(0).ndim() < 1) fail_value("flipud: x has no axis.");
      c.out.push_back(flip(c.in(0), {0}));
    });
HOLON_OP(rot90, "rot90(Tensor x, int k=1, int[] dims=[0,1]) -> Tensor")
    .doc("The plane of two axes rotated k times by 90 degrees, from the first axis towards the second.",
         "rot90(ones(2, 3))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (c.ints("dims"_attr).size() != 2)
        fail_value("rot90: dims names {} axes. Name two.", c.ints("dims"_attr).size());
      axes_mask(c, "dims"_attr, x.ndim());
      int64_t a = c.ints("dims"_attr)[0], b = c.ints("dims"_attr)[1], k = (c.i("k"_attr) % 4 + 4) % 4;
      if (x.ndim() < 2) fail_value("rot90: x is {}; it needs two axes.", x.shape());
      c.out.push_back(k == 0       ? clone(x)
                          : k == 1 ? transpose(flip(x, {b}), a, b)
                          : k == 2 ? flip(x, {a, b})
                                   : flip(transpose(x, a, b), {b}));
    });

HOLON_OP(roll, "roll(Tensor x, int[] shifts, int[]? dims=None) -> Tensor")
    .doc("The elements along each axis shifted cyclically; without dims, in the flattened x.", "roll(arange(3), 1)")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      auto shifts = c.ints("shifts"_attr);
      auto rolled = [](const Tensor& t, int64_t by, int d) {
        const int64_t n = t.ndim() == 0 ? 1 : t.shape()[d];  // a 0-d tensor takes axis 0
        if (n == 0) return t;
        by = (by % n + n) % n;
        return by == 0 ? t : cat({slice(t, d, n - by, n), slice(t, d, 0, n - by)}, d);
      };
      if (!c.has("dims"_attr)) {
        if (shifts.size() != 1)
          fail_value("roll: {} shifts were given without dims. Name an axis for each.", shifts.size());
        c.out.push_back(reshape(rolled(reshape(x, {-1}), shifts[0], 0), x.shape()));
        return;
      }
      auto dims = c.ints("dims"_attr);
      if (dims.size() != shifts.size())
        fail_value("roll: {} shifts for {} axes. Give one for each.", shifts.size(), dims.size());
      Tensor t = x;
      for (size_t i = 0; i < dims.size(); ++i) t = rolled(t, shifts[i], normalize_axis(dims[i], x.ndim(), "roll"));
      c.out.push_back(t.is_same(x) ? clone(x) : t);
    });

namespace {

Tensor repeated(const char* op, const Tensor& x, const Dims& times) {
  int lead = times.size() - x.ndim();
  Dims ones, wide, shape;
  for (int a = 0; a < times.size(); ++a) {
    if (times[a] < 0) fail_value("{}: {} repetitions of an axis; give 0 or more.", op, times[a]);
    int64_t n = a < lead ? 1 : x.shape()[a - lead];
    shape.push_back(0);
    if (__builtin_mul_overflow(times[a], n, &shape[a]))
      fail_value("{}: {} times axis {} of {} are more elements than a 64-bit number counts.", op, times[a], a - lead,
                 x.shape());
    // An axis of one element, or one time, needs no axis of its own for the repetition.
    if (n == 1) {
      ones.push_back(1), wide.push_back(times[a]);
    } else if (times[a] == 1) {
      ones.push_back(n), wide.push_back(n);
    } else {
      ones.push_back(1), ones.push_back(n);
      wide.push_back(times[a]), wide.push_back(n);
    }
  }
  return clone(reshape(expand(reshape(x, ones), wide), shape));
}

}  // namespace

HOLON_OP(repeat, "repeat(Tensor x, int... repeats) -> Tensor")
    .doc("x repeated that many times along each axis; new axes come first.", "repeat(ones(2), 2, 3)")
    .body([](BodyCall& c) {
      Dims times(c.ints("repeats"_attr));
      if (times.size() < c.in(0).ndim())
        fail_value("repeat: {} numbers for the {} axes of x {}. Give one for each.", times.size(), c.in(0).ndim(),
                   c.in(0).shape());
      c.out.push_back(repeated("repeat", c.in(0), times));
    });
HOLON_OP(tile, "tile(Tensor x, int... dims) -> Tensor")
    .doc("As repeat(), with ones for the leading axes that dims does not name.", "tile(ones(2), 3)")
    .body([](BodyCall& c) {
      Dims times(c.ints("dims"_attr));
      while (times.size() < c.in(0).ndim()) times.insert(0, 1);
      c.out.push_back(repeated("tile", c.in(0), times));
    });
HOLON_OP(repeat_interleave, "repeat_interleave(Tensor x, int repeats, int? dim=None) -> Tensor")
    .doc("Each element repeated that many times in succession along an axis, or in the flattened x.",
         "repeat_interleave(arange(3), 2)")
    .body([](BodyCall& c) {
      Tensor x = c.has("dim"_attr) ? c.in(0) : reshape(c.in(0), {-1});
      int d = c.has("dim"_attr) ? normalize_axis(c.i("dim"_attr), x.ndim(), "repeat_interleave") : 0;
      int64_t n = c.i("repeats"_attr);
      if (n < 0) fail_value("repeat_interleave: repeats is {}; give 0 or more.", n);
      if (x.ndim() == 0) x = reshape(x, {1});
      Dims wide = x.shape(), shape = x.shape();
      wide.insert(d + 1, n);
      if (__builtin_mul_overflow(shape[d], n, &shape[d]))
        fail_value("repeat_interleave: {} repeats of axis {} of {} are more elements than a 64-bit number counts.", n,
                   d, x.shape());
      // Of one element, or once, the reshape would be a window on x.
      Tensor y = reshape(expand(unsqueeze(x, d + 1), wide), shape);
      c.out.push_back(x.numel() <= 1 || n <= 1 ? clone(y) : y);
    });
HOLON_OP(repeat_interleave_each, "repeat_interleave_each(Tensor x, Tensor repeats, int? dim=None) -> Tensor")
    .doc("Each element repeated as often as its entry in repeats. Collective for a global repeats.",
         "repeat_interleave(arange(2), tensor([1, 3]))")
    .overload_of("repeat_interleave")
    .body([](BodyCall& c) {
      Tensor x = c.has("dim"_attr) ? c.in(0) : reshape(c.in(0), {-1});
      int d = c.has("dim"_attr) ? normalize_axis(c.i("dim"_attr), x.ndim(), "repeat_interleave") : 0;
      if (x.ndim() == 0) x = reshape(x, {1});
      const Tensor& repeats = c.in(1);
      if (is_floating(repeats.dtype()) || repeats.ndim() > 1 ||
          (repeats.numel() != 1 && repeats.numel() != x.shape()[d]))
        fail_value(
            "repeat_interleave: repeats is {} {}; it takes one integer, or one for each of the {} along the axis.",
            name(repeats.dtype()), repeats.shape(), x.shape()[d]);
      std::vector<int64_t> times = to_vector<int64_t>(repeats);
      std::vector<int64_t> places;
      for (int64_t i = 0; i < x.shape()[d]; ++i) {
        int64_t n = times[times.size() == 1 ? 0 : to_size(i)];
        if (n < 0) fail_value("repeat_interleave: repeats has {} at {}; give 0 or more.", n, i);
        places.insert(places.end(), to_size(n), i);
      }
      Array index = Array::empty({static_cast<int64_t>(places.size())}, int64);
      std::copy(places.begin(), places.end(), index.data<int64_t>());
      c.out.push_back(index_select(x, d, beside(x, index)));
    });

HOLON_OP(unbind, "unbind(Tensor x, int dim=0) -> Tensor[]")
    .doc("The slices along an axis, without it; views.", "unbind(ones(2, 3))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (x.ndim() == 0) fail_value("unbind: x has no axis.");
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "unbind");
      for (int64_t i = 0; i < x.shape()[d]; ++i) c.out.push_back(select(x, d, i));
    });

HOLON_OP(unflatten, "unflatten(Tensor x, int dim, int[] sizes) -> Tensor")
    .doc("One axis as several of the given sizes, of which one may be -1; a view where strides allow.",
         "unflatten(ones(6), 0, [2, 3])")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "unflatten");
      if (x.ndim() == 0 || c.ints("sizes"_attr).empty())
        fail_value("unflatten: x {} by sizes {}: an axis must become at least one axis.", x.shape(),
                   Dims(c.ints("sizes"_attr)));
      int64_t known = 1;
      int open = 0;
      for (int64_t n : c.ints("sizes"_attr)) {
        if (n == -1)
          ++open;
        else if (__builtin_mul_overflow(known, n, &known))
          fail_value("unflatten: sizes {} are more elements than a 64-bit number counts.", Dims(c.ints("sizes"_attr)));
      }
      int64_t n = x.shape()[d];
      if (open > 1 || (open == 1 && (known == 0 || n % known)) || (open == 0 && known != n))
        fail_value("unflatten: the product of sizes {} is not the size of axis {} of x {}, which is {}.",
                   Dims(c.ints("sizes"_attr)), d, x.shape(), n);
      Dims shape;
      for (int a = 0; a < x.ndim(); ++a) {
        if (a != d)
          shape.push_back(x.shape()[a]);
        else
          for (int64_t s : c.ints("sizes"_attr)) shape.push_back(s == -1 ? n / known : s);
      }
      c.out.push_back(reshape(x, shape));
    });

HOLON_OP(tensor_split, "tensor_split(Tensor x, int sections, int dim=0) -> Tensor[]")
    .doc("That many pieces along an axis, the first ones larger by one if the number does not divide it; views.",
         "tensor_split(ones(5), 2)")
    .body([](BodyCall& c) {
      int d = normalize_axis(c.i("dim"_attr), c.in(0).ndim(), "tensor_split");
      int64_t k = c.i("sections"_attr);
      if (c.in(0).ndim() == 0) fail_value("tensor_split: x has no axis.");
      constexpr int64_t kMost = 1 << 24;  // a list that still fits in memory
      if (k <= 0 || k > kMost)
        fail_value("tensor_split: {} pieces were requested; the number must be at least 1 and at most {}.", k, kMost);
      int64_t n = c.in(0).shape()[d], at = 0;
      for (int64_t i = 0; i < k; ++i) {
        int64_t size = n / k + (i < n % k);
        c.out.push_back(slice(c.in(0), d, at, at + size));
        at += size;
      }
    });
HOLON_OP(tensor_split_at, "tensor_split_at(Tensor x, int[] indices, int dim=0) -> Tensor[]")
    .doc("The pieces between the indices along an axis; views.", "tensor_split(ones(5), [1, 3])")
    .overload_of("tensor_split")
    .python_only()
    .body([](BodyCall& c) {
      int d = normalize_axis(c.i("dim"_attr), c.in(0).ndim(), "tensor_split");
      if (c.in(0).ndim() == 0) fail_value("tensor_split: x has no axis.");
      int64_t at = 0;
      for (int64_t i : c.ints("indices"_attr)) {
        c.out.push_back(slice(c.in(0), d, at, i));
        at = i;
      }
      c.out.push_back(slice(c.in(0), d, at));
    });

HOLON_OP(broadcast_like, "broadcast_like(Tensor x, Tensor like, int[]? broadcast_axes=None) -> Tensor")
    .doc("x expanded to the shape of like; broadcast_axes are those axes of the result that x lacks.",
         "broadcast_like(ones(3), ones(2, 3))")
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      const Dims& shape = c.in(1).shape();
      if (c.has("broadcast_axes"_attr)) {
        uint32_t mask = axes_mask(c, "broadcast_axes"_attr, shape.size());
        // Axes of size 1 that x has already stay.
        if (x.ndim() < shape.size())
          for (int a = 0; a < shape.size(); ++a)
            if (mask >> a & 1) x = unsqueeze(x, a);
      }
      c.out.push_back(expand(x, shape));
    });
HOLON_OP(broadcast_tensors, "broadcast_tensors(Tensor... tensors) -> Tensor[]")
    .doc("The tensors expanded to their common shape; views.", "broadcast_tensors(ones(3), ones(2, 1))")
    .body([](BodyCall& c) {
      Dims shape;
      for (auto& t : c.inputs()) shape = broadcast_shapes(shape, t.shape(), "broadcast_tensors");
      for (auto& t : c.inputs()) c.out.push_back(expand(t, shape));
    });
HOLON_OP(meshgrid, "meshgrid(Tensor... tensors, *, str indexing='ij') -> Tensor[]")
    .doc("Coordinate tensors of the grid spanned by one-dimensional tensors, one axis for each; indexing 'xy' "
         "exchanges the first two axes. Views.",
         "meshgrid(arange(2), arange(3))")
    .body([](BodyCall& c) {
      auto indexing = c.text("indexing"_attr);
      if (indexing != "ij" && indexing != "xy")
        fail_value("meshgrid: indexing is '{}'. It can be 'ij' or 'xy'.", indexing);
      int n = static_cast<int>(c.n_in());
      bool swap = indexing == "xy" && n > 1;
      auto place = [&](int i) { return swap && i < 2 ? 1 - i : i; };
      Dims shape = Dims::filled(n, 1);
      for (int i = 0; i < n; ++i) {
        if (c.in(to_size(i)).ndim() > 1)
          fail_value("meshgrid: tensor {} is {}; it must have one axis. Flatten it.", i, c.in(to_size(i)).shape());
        shape[place(i)] = c.in(to_size(i)).numel();
      }
      for (int i = 0; i < n; ++i) {
        Dims own = Dims::filled(n, 1);
        own[place(i)] = shape[place(i)];
        c.out.push_back(expand(reshape(c.in(to_size(i)), own), shape));
      }
    });

namespace {

Tensor at_least(const Tensor& x, int n) {
  const Dims& s = x.shape();
  if (s.size() >= n) return x;
  if (n == 1) return reshape(x, {1});
  if (n == 2) return reshape(x, s.size() == 1 ? Dims{1, s[0]} : Dims{1, 1});
  return reshape(x, s.size() == 2 ? Dims{s[0], s[1], 1} : s.size() == 1 ? Dims{1, s[0], 1} : Dims{1, 1, 1});
}

void stack_along(BodyCall& c, int n, int dim) {
  std::vector<Tensor> parts;
  for (auto& x : c.inputs()) parts.push_back(at_least(x, n));
  c.out.push_back(cat(parts, n == 1 && parts[0].ndim() == 1 ? 0 : dim));
}

}  // namespace

HOLON_OP(atleast_1d, "atleast_1d(Tensor x) -> Tensor")
    .doc("x with one axis if it has none.", "atleast_1d(ones())")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(at_least(c.in(0), 1)); });
HOLON_OP(atleast_2d, "atleast_2d(Tensor x) -> Tensor")
    .doc("x with leading axes added up to two.", "atleast_2d(ones(3))")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(at_least(c.in(0), 2)); });
HOLON_OP(atleast_3d, "atleast_3d(Tensor x) -> Tensor")
    .doc("x with axes added up to three: a row [n] becomes [1, n, 1], a matrix [m, n] becomes [m, n, 1].",
         "atleast_3d(ones(3))")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(at_least(c.in(0), 3)); });
HOLON_OP(atleast_1d_list, "atleast_1d_list(Tensor... tensors) -> Tensor[]")
    .doc("Each of the tensors with at least 1 axis.", "atleast_1d([ones()])")
    .overload_of("atleast_1d")
    .body([](BodyCall& c) {
      for (auto& x : c.inputs()) c.out.push_back(at_least(x, 1));
    });
HOLON_OP(atleast_2d_list, "atleast_2d_list(Tensor... tensors) -> Tensor[]")
    .doc("Each of the tensors with at least 2 axes.", "atleast_2d([ones(3)])")
    .overload_of("atleast_2d")
    .body([](BodyCall& c) {
      for (auto& x : c.inputs()) c.out.push_back(at_least(x, 2));
    });
HOLON_OP(atleast_3d_list, "atleast_3d_list(Tensor... tensors) -> Tensor[]")
    .doc("Each of the tensors with at least 3 axes.", "atleast_3d([ones(3)])")
    .overload_of("atleast_3d")
    .body([](BodyCall& c) {
      for (auto& x : c.inputs()) c.out.push_back(at_least(x, 3));
    });
HOLON_OP(hstack, "hstack(Tensor[] tensors) -> Tensor")
    .doc("The tensors concatenated along the second axis, or along the only axis.", "hstack([ones(2), ones(3)])")
    .body([](BodyCall& c) { stack_along(c, 1, 1); });
HOLON_OP(vstack, "vstack(Tensor[] tensors) -> Tensor")
    .doc("The tensors concatenated along the first axis, after atleast_2d().", "vstack([ones(2), ones(2)])")
    .body([](BodyCall& c) { stack_along(c, 2, 0); });
HOLON_OP(dstack, "dstack(Tensor[] tensors) -> Tensor")
    .doc("The tensors concatenated along the third axis, after atleast_3d().", "dstack([ones(2), ones(2)])")
    .body([](BodyCall& c) { stack_along(c, 3, 2); });
HOLON_ALIAS(row_stack, vstack);

namespace {

// Where the diagonal of a matrix begins, and how long it is.
struct Diagonal {
  int64_t row, col, size;
};
Diagonal diagonal_of(int64_t rows, int64_t cols, int64_t offset) {
  offset = std::clamp(offset, -rows, cols);  // beyond that there is nothing either way
  Diagonal d{std::max<int64_t>(-offset, 0), std::max<int64_t>(offset, 0), 0};
  d.size = std::max<int64_t>(std::min(rows - d.row, cols - d.col), 0);
  return d;
}

std::pair<int, int> plane(const AttrReader& c, int ndim) {
  int a = normalize_axis(c.i("dim1"_attr), ndim, c.op().public_name()),
      b = normalize_axis(c.i("dim2"_attr), ndim, c.op().public_name());
  if (a == b || ndim < 2)
    fail_value("{}: dim1 and dim2 name the same axis, {}, of {}. Name two.", c.op().public_name(), a, ndim);
  return {a, b};
}

// The other axes, in and out; the diagonal is the last axis of the smaller operand.
void diagonal_rule(RuleCall& r, bool into) {
  const Dims& matrix = (into ? r.out : r.in)[0].shape;
  auto [d1, d2] = plane(r, matrix.size());
  int at = 0;
  for (int a = 0; a < matrix.size(); ++a) {
    if (a == d1 || a == d2) continue;
    int f = r.rule.factor();
    into ? r.rule.out(0, a, f) : r.rule.in(0, a, f);
    into ? r.rule.in(0, at, f) : r.rule.out(0, at, f);
    ++at;
  }
}

Array diagonal_view(const Array& x, int d1, int d2, int64_t offset, const Dims& shape) {
  Diagonal d = diagonal_of(x.shape[d1], x.shape[d2], offset);
  Dims strides;
  for (int a = 0; a < x.ndim(); ++a)
    if (a != d1 && a != d2) strides.push_back(x.strides[a]);
  strides.push_back(x.strides[d1] + x.strides[d2]);
  // Without elements strides can be any: a place is not looked for.
  return x.view(shape, strides, shape.numel() ? d.row * x.strides[d1] + d.col * x.strides[d2] : 0);
}

}  // namespace

HOLON_OP(diagonal, "diagonal(Tensor x, int offset=0, int dim1=0, int dim2=1) -> Tensor")
    .doc("The diagonals of the planes of two axes, as a last axis; a view.", "diagonal(ones(3, 3))")
    .infer([](Infer& c) {
      auto [d1, d2] = plane(c, c.ndim(0));
      Dims s;
      for (int a = 0; a < c.ndim(0); ++a)
        if (a != d1 && a != d2) s.push_back(c.shape(0)[a]);
      s.push_back(diagonal_of(c.shape(0)[d1], c.shape(0)[d2], c.i("offset"_attr)).size);
      c.out(s, c.dtype_of(0));
    })
    .rule([](RuleCall& r) { diagonal_rule(r, false); })
    .linear()
    .view([](ViewCall& v, Array& out) {
      auto [d1, d2] = plane(v, v.in.ndim());
      out = diagonal_view(v.in, d1, d2, v.i("offset"_attr), v.shape);
    })
    .grad([](Grad& g) {
      g.dx(0, diagonal_backward(g.dy(), g.in_shape(), g.i("offset"_attr), g.i("dim1"_attr), g.i("dim2"_attr)));
    });
HOLON_OP(diagonal_backward, "diagonal_backward(Tensor dy, int[] shape, int offset=0, int dim1=0, int dim2=1) -> Tensor")
    .doc("dy as the diagonals in zeros of the given shape.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule([](RuleCall& r) { diagonal_rule(r, true); })
    .linear()
    .kernel([](KernelCall& c) {
      auto [d1, d2] = plane(c, c.out().ndim());
      kernels::fill(c.out(), Scalar(0));
      Array window = diagonal_view(c.out(), d1, d2, c.i("offset"_attr), c.in(0).shape);
      kernels::copy(c.in(0), window);
    })
    .grad([](Grad& g) { g.dx(0, diagonal(g.dy(), g.i("offset"_attr), g.i("dim1"_attr), g.i("dim2"_attr))); });
HOLON_OP(diag_embed, "diag_embed(Tensor x, int offset=0, int dim1=-2, int dim2=-1) -> Tensor")
    .doc("Matrices of zeros with the last axis of x as their diagonals, in the plane of two axes of the result.",
         "diag_embed(ones(3))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (x.ndim() == 0) fail_value("diag_embed: x has no axis.");
      auto [d1, d2] = plane(c, x.ndim() + 1);
      constexpr int64_t kFarthest = int64_t{1} << 40;
      if (c.i("offset"_attr) > kFarthest || c.i("offset"_attr) < -kFarthest)
        fail_value("diag_embed: a diagonal at offset {} does not fit in memory.", c.i("offset"_attr));
      int64_t n = x.shape().back() + std::abs(c.i("offset"_attr));
      Dims shape = x.shape();
      shape.resize(shape.size() - 1);
      shape.insert(std::min(d1, d2), n);
      shape.insert(std::max(d1, d2), n);
      c.out.push_back(diagonal_backward(x, shape, c.i("offset"_attr), d1, d2));
    });
HOLON_OP(diag, "diag(Tensor x, int diagonal=0) -> Tensor")
    .doc("The diagonal of a matrix, or a matrix with a vector as its diagonal.", "diag(ones(3))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (x.ndim() != 1 && x.ndim() != 2)
        fail_value("diag: x is {}; it must have one or two axes. Use diagonal() or diag_embed().", x.shape());
      c.out.push_back(x.ndim() == 1 ? diag_embed(x, c.i("diagonal"_attr), 0, 1) : diagonal(x, c.i("diagonal"_attr)));
    });

HOLON_OP(unfold_dim, "unfold_dim(Tensor x, int dimension, int size, int step) -> Tensor")
    .doc(
        "All windows of a size along an axis, each starting a step after the previous one, as a new last axis; a view.",
        "arange(4).unfold(0, 2, 1)")
    .hidden()
    .infer([](Infer& c) {
      int d = c.axis("dimension"_attr);
      int64_t n = c.ndim(0) ? c.shape(0)[d] : 1, size = c.i("size"_attr), step = c.i("step"_attr);
      c.require(size >= 0 && size <= n, fmt::format("size {} is not in [0, {}]", size, n), "Choose a smaller window.");
      c.require(step > 0, "step is not positive", "Give 1 or more.");
      Dims s = c.shape(0);
      if (c.ndim(0)) s[d] = (n - size) / step + 1;
      s.push_back(size);
      c.out(s, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int n = r.in[0].shape.size();
      if (n > 0) keep_axes(r, 1u << normalize_axis(r.i("dimension"_attr), n, "unfold") | 1u << n);
    })
    .linear()
    .view([](ViewCall& v, Array& out) {
      Dims strides = v.in.strides;
      if (v.in.ndim() == 0) {
        strides.push_back(1);
      } else {
        int d = normalize_axis(v.i("dimension"_attr), v.in.ndim(), "unfold");
        strides.push_back(strides[d]);
        strides[d] *= v.i("step"_attr);
      }
      out = v.in.view(v.shape, strides);
    })
    .grad([](Grad& g) {
      g.dx(0, unfold_dim_backward(g.dy(), g.in_shape(), g.i("dimension"_attr), g.i("size"_attr), g.i("step"_attr)));
    });
HOLON_OP(unfold_dim_backward,
         "unfold_dim_backward(Tensor dy, int[] shape, int dimension, int size, int step) -> Tensor")
    .doc("The windows added up at their positions.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      int n = r.out[0].shape.size();
      if (n > 0) keep_axes(r, 1u << normalize_axis(r.i("dimension"_attr), n, "unfold"));
      // Each part of the windows' elements gives addends.
      r.rule.in(0, n, r.rule.factor(true));
    })
    .linear()
    .kernel([](KernelCall& c) {
      int n = c.out().ndim(), d = n ? normalize_axis(c.i("dimension"_attr), n, "unfold") : 0;
      kernels::fill(c.out(), Scalar(0));
      // One element of every window at a time: those do not overlap.
      for (int64_t i = 0; i < c.in(0).shape.back(); ++i) {
        Array from = c.in(0), to = c.out();
        from.offset += i * from.strides.back();
        from.shape.resize(n);
        from.strides.resize(n);
        if (n > 0) {
          to.offset += (i + c.offset_in(0)[n]) * to.strides[d];
          to.shape[d] = from.shape[d];
          to.strides[d] *= c.i("step"_attr);
        }
        kernels::binary(kernels::BinaryOp::Add, to, from, to);
      }
    })
    .grad([](Grad& g) { g.dx(0, unfold_dim(g.dy(), g.i("dimension"_attr), g.i("size"_attr), g.i("step"_attr))); });

}  // namespace holon::ops
