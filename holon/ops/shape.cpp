// Shapes: views and rearrangements. All are linear, so partial sums pass; a view never moves data.
// A reshape splits and merges axes: the outermost axis of a merged group carries the split, if its size divides evenly
// among the ranks; the other axes of the group stay whole.
#include <algorithm>

#include "holon/base/ceil_div.h"
#include "holon/base/index.h"
#include "holon/dispatch/dispatch.h"
#include "holon/internal_ops/shape.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/scan.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/axes.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

// The target shape of a reshape, with -1 filled in.
Dims resolve_shape(const Infer& c, std::span<const int64_t> given) {
  Dims shape(given);
  int64_t known = 1, unknown = -1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      c.require(unknown < 0, "only one size can be -1", "Give the others.");
      unknown = i;
    } else {
      c.require(shape[i] >= 0, "a size is negative", "A size is at least 0; -1 is inferred.");
      if (__builtin_mul_overflow(known, shape[i], &known))
        fail_value("{}: shape {} has more elements than a 64-bit number counts.", c.op().name(), shape);
    }
  }
  int64_t n = c.shape(0).numel();
  if (unknown >= 0) {
    if (known == 0 || n % known)
      fail_value("{}: {} elements of shape {} are not divisible into {} (logical shapes). Choose sizes whose product "
                 "divides them.",
                 c.op().name(), n, c.shape(0), shape);
    shape[static_cast<int>(unknown)] = n / known;
  } else if (known != n) {
    fail_value("{}: shape {} has {} elements, x {} has {}. The numbers must be equal; -1 is inferred.", c.op().name(),
               shape, known, c.shape(0), n);
  }
  return shape;
}

void reshape_infer(Infer& c) { c.out(resolve_shape(c, c.ints("shape"_attr)), c.dtype_of(0)); }

void reshape_rule(RuleCall& r) {
  const Dims &from = r.in[0].shape, &to = r.out[0].shape;
  if (from.numel() == 0) return;
  int i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    // The smallest groups of axes with the same number of elements on both sides.
    int i0 = i, j0 = j;
    int64_t a = i < from.size() ? from[i++] : 1, b = j < to.size() ? to[j++] : 1;
    while (a != b) {
      if (a < b)
        a *= from[i++];
      else
        b *= to[j++];
    }
    auto first = [](const Dims& d, int k, int end) {
      while (k + 1 < end && d[k] == 1) ++k;
      return k;
    };
    if (i == i0 || j == j0) continue;
    int fi = first(from, i0, i), fj = first(to, j0, j);
    bool single = from[fi] == a && to[fj] == b;
    // Even division of the coarser axis divides the finer ones too.
    int64_t units = single ? 0 : std::min(from[fi], to[fj]);
    if (!single && std::max(from[fi], to[fj]) % units) continue;
    int f = r.rule.factor(false, units);
    r.rule.in(0, fi, f);
    r.rule.out(0, fj, f);
  }
}

// A compiled graph asks before there is memory, and copies by itself later.
Array row_major(const Array& a) {
  if (a.is_contiguous() || !a.is_placeholder()) return kernels::contiguous(a);
  return Array::placeholder(a.shape, contiguous_strides(a.shape), a.dtype, a.device);
}

void reshape_view(ViewCall& v, Array& out) {
  if (!view_strides(v.in.shape, v.in.strides, v.shape, &out.strides)) {
    out = row_major(v.in);
    out.strides = contiguous_strides(v.shape);
  }
  out.shape = v.shape;
}

// What PyTorch's programs begin a list of tensors of any shape with.
bool is_nothing(const Dims& shape) { return shape.size() == 1 && shape[0] == 0; }

void reshape_grad(Grad& g) { g.dx(0, reshape(g.dy(), g.in_shape())); }

Dims permuted(const Dims& shape, const Dims& axes) {
  Dims out;
  for (int64_t a : axes) out.push_back(shape[static_cast<int>(a)]);
  return out;
}

// The axes of a permutation, counted from 0. Errors: one repeated or missing.
Dims permutation(const AttrReader& c, int ndim) {
  Dims axes;
  uint32_t seen = 0;
  for (int64_t d : c.ints("dims"_attr)) {
    axes.push_back(normalize_axis(d, ndim, c.op().name()));
    seen |= 1u << axes.back();
  }
  if (axes.size() != ndim || seen != (1u << ndim) - 1)
    fail_value("{}: dims {} are not a permutation of the {} axes. Name each axis once.", c.op().name(), axes, ndim);
  return axes;
}

std::pair<int, int> swapped(const AttrReader& c, int ndim) {
  return {normalize_axis(c.i("dim0"_attr), ndim, c.op().name()), normalize_axis(c.i("dim1"_attr), ndim, c.op().name())};
}

std::optional<int64_t> optional_int(const AttrReader& c, AttrName name) {
  return c.has(name) ? std::optional(c.i(name)) : std::nullopt;
}

SliceRange range_of(const AttrReader& c, int64_t n) {
  int64_t step = c.i("step"_attr);
  if (step <= 0) fail_value("{}: step {} is not positive. Use flip() for the other direction.", c.op().name(), step);
  return slice_range(optional_int(c, "start"_attr), optional_int(c, "end"_attr), step, n);
}

}  // namespace

HOLON_OP(reshape, "reshape(Tensor x, int... shape) -> Tensor")
    .doc("x with another shape; -1 is inferred. Shares memory if the strides allow, else copies.",
         "reshape(ones(4, 3), 2, 6)")
    .infer(reshape_infer)
    .rule(reshape_rule)
    .linear()
    .view(reshape_view, ViewKind::kReshape)
    .grad(reshape_grad);
HOLON_OP(view, "view(Tensor x, int... shape) -> Tensor")
    .doc("x with another shape, in the same memory. Errors: strides that would need a copy (RuntimeError); reshape() "
         "makes one.",
         "view(ones(4, 3), 2, 6)")
    .infer(reshape_infer)
    .rule(reshape_rule)
    .linear()
    .view(reshape_view, ViewKind::kReshape)
    .grad(reshape_grad);
HOLON_OP(view_dtype, "view_dtype(Tensor x, dtype dtype) -> Tensor")
    .doc(
        "The bytes of x [...] as elements of another dtype of the same size, in the same memory. There is no gradient.",
        "view(ones(2), int32)")
    .overload_of("view")
    .infer([](Infer& c) {
      const DType to = c.dtype("dtype"_attr);
      c.require_dtype(size_bytes(to) == size_bytes(c.dtype_of(0)), "elements of the requested dtype have another size",
                      "Choose a dtype of the same size, or convert by to().");
      c.out(c.shape(0), to);
    })
    .rule_elementwise()
    .view([](ViewCall& v, Array& out) { out.dtype = v.dtype("dtype"_attr); });

HOLON_OP(flatten, "flatten(Tensor x, int start_dim=0, int end_dim=-1) -> Tensor")
    .doc("Merges the axes from start_dim to end_dim into one.", "flatten(ones(2, 3, 4), 1)")
    .body([](BodyCall& c) {
      const Dims& s = c.in(0).shape();
      int a = normalize_axis(c.i("start_dim"_attr), s.size(), "flatten"),
          b = normalize_axis(c.i("end_dim"_attr), s.size(), "flatten");
      if (a > b) fail_value("flatten: start_dim {} comes after end_dim {}. Swap them.", a, b);
      Dims shape;
      for (int i = 0; i < a; ++i) shape.push_back(s[i]);
      int64_t n = 1;
      for (int i = a; i <= b && i < s.size(); ++i) n *= s[i];
      shape.push_back(n);
      for (int i = b + 1; i < s.size(); ++i) shape.push_back(s[i]);
      c.out.push_back(shape == s ? c.in(0) : reshape(c.in(0), shape));
    });

HOLON_OP(permute, "permute(Tensor x, int... dims) -> Tensor")
    .doc("The axes in another order; a view.", "permute(ones(2, 3), 1, 0)")
    .infer([](Infer& c) { c.out(permuted(c.shape(0), permutation(c, c.ndim(0))), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      Dims axes = permutation(r, r.in[0].shape.size());
      for (int a = 0; a < axes.size(); ++a) {
        int f = r.rule.factor();
        r.rule.out(0, a, f);
        r.rule.in(0, static_cast<int>(axes[a]), f);
      }
    })
    .linear()
    .view(
        [](ViewCall& v, Array& out) {
          Dims axes = permutation(v, v.in.ndim());
          out.shape = permuted(v.in.shape, axes);
          out.strides = permuted(v.in.strides, axes);
        },
        ViewKind::kPermute)
    .grad([](Grad& g) {
      Dims axes = permutation(g, g.in_shape().size()), inverse = axes;
      for (int a = 0; a < axes.size(); ++a) inverse[static_cast<int>(axes[a])] = a;
      g.dx(0, permute(g.dy(), inverse));
    });

HOLON_OP(transpose, "transpose(Tensor x, int dim0, int dim1) -> Tensor")
    .doc("Two axes exchanged; a view.", "transpose(ones(2, 3), 0, 1)")
    .infer([](Infer& c) {
      auto [a, b] = swapped(c, c.ndim(0));
      Dims s = c.shape(0);
      if (s.size() > 0) std::swap(s[a], s[b]);
      c.out(s, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      auto [d0, d1] = swapped(r, r.in[0].shape.size());
      for (int a = 0; a < r.in[0].shape.size(); ++a) {
        int f = r.rule.factor();
        r.rule.out(0, a, f);
        r.rule.in(0, a == d0 ? d1 : a == d1 ? d0 : a, f);
      }
    })
    .linear()
    .view(
        [](ViewCall& v, Array& out) {
          auto [a, b] = swapped(v, v.in.ndim());
          if (v.in.ndim() == 0) return;
          std::swap(out.shape[a], out.shape[b]);
          std::swap(out.strides[a], out.strides[b]);
        },
        ViewKind::kPermute)
    .grad([](Grad& g) { g.dx(0, transpose(g.dy(), g.i("dim0"_attr), g.i("dim1"_attr))); });

HOLON_ALIAS(swapaxes, transpose);
HOLON_ALIAS(swapdims, transpose);

HOLON_OP(t, "t(Tensor x) -> Tensor")
    .doc("The transpose of a matrix; a vector as it is.", "t(ones(2, 3))")
    .body([](BodyCall& c) {
      if (c.in(0).ndim() > 2)
        fail_value("t: x has {} axes; it takes at most 2. Use transpose(x, dim0, dim1).", c.in(0).ndim());
      c.out.push_back(c.in(0).ndim() == 2 ? transpose(c.in(0), 0, 1) : c.in(0));
    });

HOLON_OP(unsqueeze, "unsqueeze(Tensor x, int dim) -> Tensor")
    .doc("A new axis of size 1 before axis dim.", "unsqueeze(ones(2), 0)")
    .body([](BodyCall& c) {
      Dims s = c.in(0).shape();
      s.insert(normalize_axis(c.i("dim"_attr), s.size() + 1, "unsqueeze"), 1);
      c.out.push_back(reshape(c.in(0), s));
    });

HOLON_OP(squeeze, "squeeze(Tensor x, int[]? dim=None) -> Tensor")
    .doc("x without the axes of size 1, or without those of them that dim names.", "squeeze(ones(2, 1))")
    .body([](BodyCall& c) {
      const Dims& s = c.in(0).shape();
      uint32_t chosen = c.has("dim"_attr) ? 0 : ~0u;
      if (c.has("dim"_attr))
        for (int64_t d : c.ints("dim"_attr)) chosen |= 1u << normalize_axis(d, s.size(), "squeeze");
      Dims out;
      for (int i = 0; i < s.size(); ++i)
        if (s[i] != 1 || !(chosen >> i & 1)) out.push_back(s[i]);
      c.out.push_back(out.size() == s.size() ? c.in(0) : reshape(c.in(0), out));
    });

HOLON_OP(expand, "expand(Tensor x, int... size) -> Tensor")
    .doc("Axes of size 1 repeated to the given size without a copy; -1 keeps a size; new axes come first.",
         "expand(ones(2, 1), 2, 3)")
    .infer([](Infer& c) {
      Dims size(c.ints("size"_attr));
      int lead = size.size() - c.ndim(0);
      c.require(lead >= 0, "size has fewer axes than x", "Give one size for each axis.");
      for (int i = 0; i < size.size(); ++i) {
        int64_t old = i < lead ? 1 : c.shape(0)[i - lead];
        if (size[i] == -1) {
          c.require(i >= lead, "a new axis has the size -1", "Give its size.");
          size[i] = old;
        }
        if (old != size[i] && old != 1)
          fail_value("expand: axis {} of x {} has size {}; only size 1 can become {}.", i - lead, c.shape(0), old,
                     size[i]);
      }
      c.out(size, c.dtype_of(0));
    })
    .rule_elementwise()
    .linear()
    .view([](ViewCall& v, Array& out) {
      int lead = v.shape.size() - v.in.ndim();
      Dims strides = Dims::filled(v.shape.size(), 0);
      for (int i = lead; i < v.shape.size(); ++i)
        strides[i] = v.in.shape[i - lead] == v.shape[i] ? v.in.strides[i - lead] : 0;
      out.shape = v.shape;
      out.strides = strides;
    })
    .grad([](Grad& g) { g.dx(0, sum_to_size(g.dy(), g.in_shape())); });
HOLON_ALIAS(broadcast_to, expand);

HOLON_OP(slice, "slice(Tensor x, int dim, int? start=None, int? end=None, int step=1) -> Tensor")
    .doc("Elements start, start + step, ... before end along an axis, as Python's slices; a view.",
         "slice(ones(4), 0, 1, 3)")
    .infer([](Infer& c) {
      c.require(c.ndim(0) > 0, "a 0-d tensor has no axis to slice", "Use it as it is.");
      Dims s = c.shape(0);
      int d = c.axis("dim"_attr);
      s[d] = range_of(c, s[d]).count;
      c.out(s, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int d = normalize_axis(r.i("dim"_attr), r.in[0].shape.size(), "slice");
      keep_axes(r, r.in[0].shape == r.out[0].shape ? 0 : 1u << d);
    })
    .linear()
    .view([](ViewCall& v, Array& out) {
      int d = normalize_axis(v.i("dim"_attr), v.in.ndim(), "slice");
      if (v.in.shape[d] == v.shape[d]) return;
      SliceRange range = range_of(v, v.in.shape[d]);
      if (range.count) out.offset += range.start * out.strides[d];
      out.shape[d] = range.count;
      out.strides[d] *= range.step;
    })
    .grad([](Grad& g) {
      g.dx(0,
           slice_backward(g.dy(), g.in_shape(), g.i("dim"_attr), optional_int(g, "start"_attr),
                          optional_int(g, "end"_attr), g.i("step"_attr)));
    });

HOLON_OP(slice_backward,
         "slice_backward(Tensor dy, int[] shape, int dim, int? start=None, int? end=None, int step=1) -> Tensor")
    .doc("dy at its place in zeros of the given shape.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      int d = normalize_axis(r.i("dim"_attr), r.in[0].shape.size(), "slice");
      keep_axes(r, r.in[0].shape == r.out[0].shape ? 0 : 1u << d);
    })
    .linear()
    .kernel([](KernelCall& c) {
      int d = normalize_axis(c.i("dim"_attr), c.out().ndim(), "slice");
      if (c.in(0).shape[d] == c.out().shape[d]) return kernels::copy(c.in(0), c.out());
      SliceRange range = range_of(c, c.out().shape[d]);
      kernels::fill(c.out(), Scalar(0));
      Dims strides = c.out().strides;
      int64_t offset = range.count ? range.start * strides[d] : 0;
      strides[d] *= range.step;
      Array window = c.out().view(c.in(0).shape, strides, offset);
      kernels::copy(c.in(0), window);
    })
    .grad([](Grad& g) {
      g.dx(0,
           slice(g.dy(), g.i("dim"_attr), optional_int(g, "start"_attr), optional_int(g, "end"_attr),
                 g.i("step"_attr)));
    });

HOLON_OP(select, "select(Tensor x, int dim, int index) -> Tensor")
    .doc("The slice at an index along an axis, without that axis; a view.", "select(ones(2, 3), 0, 1)")
    .infer([](Infer& c) {
      if (c.ndim(0) == 0) fail(ErrorKind::kIndex, "select: a 0-d tensor has no axis to index. Use item().");
      const int d = c.axis("dim"_attr);
      const int64_t n = c.shape(0)[d], i = c.i("index"_attr);
      if (i < -n || i >= n)
        fail(ErrorKind::kIndex, "select: index {} is out of range for axis {} of size {} (x is {}).", i, d, n,
             c.shape(0));
      Dims shape = c.shape(0);
      shape.erase(d);
      c.out(shape, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      const int d = normalize_axis(r.i("dim"_attr), r.in[0].shape.size(), "select");
      for (int a = 0, b = 0; a < r.in[0].shape.size(); ++a) {
        if (a == d) continue;
        const int f = r.rule.factor();
        r.rule.in(0, a, f);
        r.rule.out(0, b++, f);
      }
    })
    .linear()
    .view([](ViewCall& v, Array& out) {
      const int d = normalize_axis(v.i("dim"_attr), v.in.ndim(), "select");
      const int64_t i = v.i("index"_attr);
      if (out.numel()) out.offset += (i < 0 ? i + v.in.shape[d] : i) * v.in.strides[d];
      out.shape.erase(d);
      out.strides.erase(d);
    })
    .grad([](Grad& g) {
      const int d = normalize_axis(g.i("dim"_attr), g.in_shape().size(), "select");
      const int64_t i = g.i("index"_attr), from = i < 0 ? i + g.in_shape()[d] : i;
      Dims with_axis = g.dy().shape();
      with_axis.insert(d, 1);
      g.dx(0, slice_backward(reshape(g.dy(), with_axis), g.in_shape(), d, from, from + 1));
    });

HOLON_OP(narrow, "narrow(Tensor x, int dim, int start, int length) -> Tensor")
    .doc("length elements from start on along an axis; a view.", "narrow(ones(4), 0, 1, 2)")
    .body([](BodyCall& c) {
      int64_t n = c.in(0).size(c.i("dim"_attr)), start = c.i("start"_attr), length = c.i("length"_attr);
      if (start < 0) start += n;
      if (start < 0 || length < 0 || start > n || length > n - start)
        fail(ErrorKind::kIndex, "narrow: {} elements from {} exceed axis {} of x {}.", length, c.i("start"_attr),
             c.i("dim"_attr), c.in(0).shape());
      c.out.push_back(slice(c.in(0), c.i("dim"_attr), start, start + length));
    });

HOLON_OP(split, "split(Tensor x, int[] split_sizes, int dim=0) -> Tensor[]")
    .doc("Pieces of the given sizes along an axis; a single size applies to all pieces, the last of which may be "
         "smaller. Views.",
         "split(ones(4), 2)")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      auto sizes = c.ints("split_sizes"_attr);
      int64_t n = x.size(c.i("dim"_attr)), at = 0;
      std::vector<int64_t> pieces(sizes.begin(), sizes.end());
      if (pieces.size() == 1 && pieces[0] != n) {
        if (pieces[0] <= 0) fail_value("split: the size {} of a piece is not positive.", pieces[0]);
        int64_t size = pieces[0];
        int64_t whole = n / size;
        pieces.assign(to_size(whole), size);
        if (n % size || n == 0) pieces.push_back(n % size);
      }
      int64_t total = 0;
      for (int64_t p : pieces) {
        if (p < 0 || p > n)
          fail_value("split: a piece of size {} does not fit in axis {} of x {}.", p, c.i("dim"_attr), x.shape());
        total += p;
      }
      if (total != n)
        fail_value("split: the sizes add up to {}, axis {} of x {} has {}. Give sizes that add up to it.", total,
                   c.i("dim"_attr), x.shape(), n);
      for (int64_t p : pieces) {
        c.out.push_back(slice(x, c.i("dim"_attr), at, at + p));
        at += p;
      }
    });

HOLON_OP(chunk, "chunk(Tensor x, int chunks, int dim=0) -> Tensor[]")
    .doc("At most that many equal pieces along an axis; the last may be smaller. Views.", "chunk(ones(4), 2)")
    .body([](BodyCall& c) {
      int64_t chunks = c.i("chunks"_attr), n = c.in(0).size(c.i("dim"_attr));
      if (chunks <= 0) fail_value("chunk: {} pieces were requested; the number must be at least 1.", chunks);
      for (auto& piece : split(c.in(0), {std::max<int64_t>(ceil_div(n, chunks), 1)}, c.i("dim"_attr)))
        c.out.push_back(piece);
    });

HOLON_OP(cat, "cat(Tensor[] tensors, int dim=0) -> Tensor")
    .doc("The tensors concatenated along an axis; their other sizes must be equal. Tensors of shape [0] are ignored.",
         "cat([ones(2, 3), zeros(1, 3)])")
    .autocast(Autocast::kPromote)
    .promotes()
    .takes_float8()
    .infer([](Infer& c) {
      for (size_t i = 0; i < c.n_in(); ++i)
        c.require(c.ndim(i) > 0, "0-d tensors cannot be concatenated", "Use stack().");
      size_t first = 0;  // that is not [0]
      while (first + 1 < c.n_in() && is_nothing(c.shape(first))) ++first;
      int d = c.axis("dim"_attr, first);
      Dims s = c.shape(first);
      for (size_t i = first + 1; i < c.n_in(); ++i) {
        if (is_nothing(c.shape(i))) continue;
        c.require(c.ndim(i) == s.size(), "the numbers of axes differ", "Reshape them first.");
        for (int a = 0; a < s.size(); ++a)
          c.require(a == d || c.shape(i)[a] == s[a], "sizes differ outside dim", "Only dim may differ.");
        s[d] += c.shape(i)[d];
      }
      c.out(s, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int d = normalize_axis(r.i("dim"_attr), r.out[0].shape.size(), "cat");
      for (int a = 0; a < r.out[0].shape.size(); ++a) {
        if (a == d) continue;
        int f = r.rule.factor();
        r.rule.out(0, a, f);
        for (size_t i = 0; i < r.in.size(); ++i)
          if (!is_nothing(r.in[i].shape)) r.rule.in(i, a, f);
      }
    })
    .linear()
    .kernel([](KernelCall& c) {
      int d = normalize_axis(c.i("dim"_attr), c.out().ndim(), "cat");
      int64_t at = 0;
      for (size_t i = 0; i < c.n_in(); ++i) {
        if (is_nothing(c.in(i).shape)) continue;
        Array window = c.out().view(c.in(i).shape, c.out().strides, at * c.out().strides[d]);
        kernels::copy(c.in(i), window);
        at += c.in(i).shape[d];
      }
    })
    .grad([](Grad& g) {
      int64_t d = g.i("dim"_attr), at = 0;
      for (size_t i = 0; i < g.n_in(); ++i) {
        if (is_nothing(g.in_shape(i))) continue;
        int64_t n = g.in_shape(i)[normalize_axis(d, g.in_shape(i).size(), "cat")];
        if (g.needs(i)) g.dx(i, slice(g.dy(), d, at, at + n));
        at += n;
      }
    });
HOLON_ALIAS(concat, cat);

HOLON_OP(stack, "stack(Tensor[] tensors, int dim=0) -> Tensor")
    .doc("The tensors, all of one shape, along a new axis.", "stack([ones(2), zeros(2)])")
    .autocast(Autocast::kPromote)
    .body([](BodyCall& c) {
      std::vector<Tensor> parts;
      for (auto& x : c.inputs()) {
        if (x.shape() != c.in(0).shape())
          fail_value("stack: shapes {} and {} differ; all must be the same.", c.in(0).shape(), x.shape());
        parts.push_back(unsqueeze(x, c.i("dim"_attr)));
      }
      c.out.push_back(cat(parts, c.i("dim"_attr)));
    });

HOLON_OP(flip, "flip(Tensor x, int... dims) -> Tensor")
    .doc("x with its elements along each of the axes reversed.", "flip(arange(3), 0)")
    .takes_float8()
    .infer([](Infer& c) {
      axes_mask(c, "dims"_attr, c.ndim(0));
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) { keep_axes(r, axes_mask(r, "dims"_attr, r.in[0].shape.size())); })
    .linear()
    .kernel([](KernelCall& c) { kernels::flip(c.in(0), axes_mask(c, "dims"_attr, c.in(0).ndim()), c.out()); })
    .grad([](Grad& g) { g.dx(0, flip(g.dy(), Dims(g.ints("dims"_attr)))); });

HOLON_OP(clone, "clone(Tensor x) -> Tensor")
    .doc("A copy of x [...] in new memory.", "clone(ones(2))")
    .takes_float8()
    .infer_like()
    .rule_elementwise()
    .linear()
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::copy(c.in(0), c.out()); })
    .grad([](Grad& g) { g.dx(0, g.dy()); });

HOLON_OP(contiguous, "contiguous(Tensor x) -> Tensor")
    .doc("x with its elements in row-major order; x itself if they are already.", "contiguous(ones(2, 3))")
    .infer_like()
    .rule_elementwise()
    .linear()
    .view([](ViewCall& v, Array& out) { out = row_major(v.in); })
    .grad([](Grad& g) { g.dx(0, g.dy()); });

HOLON_OP(copy, "copy(Tensor x, Tensor src, bool non_blocking=False) -> Tensor")
    .doc("src with the shape and dtype of x, broadcast and converted; copy_() writes it into x. non_blocking: between "
         "pinned memory and a cuda device "
         "copy_() does not wait; cuda.synchronize() does.",
         "copy(ones(2), zeros(2))")
    .in_place()
    .body([](BodyCall& c) {
      Tensor src = c.in(1);
      if (src.dtype() != c.in(0).dtype()) src = cast(src, c.in(0).dtype());
      if (c.in(0).is_global() != src.is_global())
        fail_runtime("copy_: a {} tensor cannot be copied into a {} one. Use to_global() or to_local() first.",
                     src.is_global() ? "global" : "local", c.in(0).is_global() ? "global" : "local");
      c.out.push_back(src.shape() == c.in(0).shape() ? clone(src) : expand(src, c.in(0).shape()));
    });

}  // namespace holon::ops

namespace holon {

Tensor Tensor::reshape(const Dims& shape) const { return holon::reshape(*this, shape); }
Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const { return holon::transpose(*this, dim0, dim1); }

}  // namespace holon
