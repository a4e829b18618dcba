// x[...], for reading and writing. Ints, slices and new axes are views; index tensors and masks are for the ops of
// index_axes.cpp.
#include "holon/ops/indexing.h"

#include <algorithm>

#include "holon/base/ceil_div.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/gradient_forms.h"
#include "holon/global/slice.h"
#include "holon/internal_ops/index_axes.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/indexing.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/index_axes.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/to_global.h"
#include "holon/ops/whole.h"
#include "holon/tensor/tracer.h"

namespace holon {

using namespace indexing;
using Kind = Index::Kind;

namespace {

[[noreturn]] void fail_index(std::string text) { fail(ErrorKind::kIndex, "{}", text); }

int64_t wrapped(int64_t at, int64_t n, int axis) {
  if (at < -n || at >= n) fail_index(fmt::format("index {} is out of range for axis {} of size {}.", at, axis, n));
  return at < 0 ? at + n : at;
}

SliceRange range_of(const indexing::Slice& s, int64_t n) {
  if (s.step <= 0)
    fail_value("a slice of a tensor must have a step of at least 1, got {}. Use flip() to reverse an axis.", s.step);
  return slice_range(s.start, s.stop, s.step, n);
}

// How many axes of x an index takes up.
int axes_of(const Index& i) {
  switch (i.kind) {
    case Kind::kNone:
    case Kind::kEllipsis: return 0;
    case Kind::kTensor: return i.tensor.dtype() == boolean ? i.tensor.ndim() : 1;
    default: return 1;
  }
}

// A key with its axes counted: what it keeps of each axis of x, the new axes, and the index tensors.
struct Key {
  // One for each axis of the window on x and each new axis, in order; an int keeps one element, without its axis in the
  // result.
  struct Axis {
    int of;  // the axis of x, -1: new
    SliceRange range;
    bool kept;
  };
  std::vector<Axis> axes;
  std::vector<Tensor> tensors;   // int64, one for each indexed axis
  std::vector<int> tensor_axes;  // their axes among the kept ones
};

Key read_key(const Tensor& x, const std::vector<Index>& given) {
  int taken = 0, ellipses = 0;
  for (auto& i : given) {
    taken += axes_of(i);
    ellipses += i.kind == Kind::kEllipsis;
    if (i.kind == Kind::kTensor && is_floating(i.tensor.dtype()))
      fail_index(fmt::format("an index tensor must hold integers or bools, got {} {}. Convert it by .long().",
                             name(i.tensor.dtype()), i.tensor.shape()));
  }
  if (ellipses > 1) fail_index("an index may contain at most one \"...\".");
  if (taken > x.ndim())
    fail_index(fmt::format("{} indices for a tensor of {} axes, shape {}.", taken, x.ndim(), x.shape()));
  Key key;
  int d = 0, kept = 0;
  auto keep = [&](SliceRange r) {
    key.axes.push_back({d, r, true});
    ++d, ++kept;
  };
  auto whole = [&](int n) {
    for (; n > 0; --n) keep({0, 1, x.shape()[d]});
  };
  for (auto& i : given) {
    switch (i.kind) {
      case Kind::kInt:
        key.axes.push_back({d, {wrapped(i.at, x.shape()[d], d), 1, 1}, false});
        ++d;
        break;
      case Kind::kSlice: keep(range_of(i.slice, x.shape()[d])); break;
      case Kind::kNone:
        key.axes.push_back({-1, {0, 1, 1}, true});
        ++kept;
        break;
      case Kind::kEllipsis: whole(x.ndim() - taken); break;
      case Kind::kTensor: {
        Tensor t = ops::bring_beside(x, i.tensor);
        if (t.dtype() != boolean) {
          key.tensor_axes.push_back(kept);
          key.tensors.push_back(t.dtype() == int64 ? t : cast(t, int64));
          whole(1);
          break;
        }
        for (int m = 0; m < t.ndim(); ++m)
          if (t.shape()[m] != x.shape()[d + m])
            fail_index(fmt::format("a mask of shape {} does not fit the axes from {} on of a tensor of shape {}.",
                                   t.shape(), d, x.shape()));
        if (t.ndim() == 0) {  // all or nothing, along a new axis
          bool on = t.item().as_int() != 0;
          Array place = Array::empty({on ? 1 : 0}, int64);
          if (on) *place.data<int64_t>() = 0;
          key.tensor_axes.push_back(kept);
          key.tensors.push_back(ops::beside(x, place));
          key.axes.push_back({-1, {0, 1, 1}, true});
          ++kept;
          break;
        }
        for (auto& column : ops::nonzero_columns(t)) {
          key.tensor_axes.push_back(kept);
          key.tensors.push_back(column);
          whole(1);
        }
      }
    }
  }
  whole(x.ndim() - d);
  return key;
}

// Index tensors that are apart go to the front of the result, as in NumPy. Returns the order of the kept axes that
// brings theirs together, empty if it is as it is.
Dims order_of(const Key& key, int n) {
  bool apart = false;
  for (size_t k = 1; k < key.tensor_axes.size(); ++k) apart |= key.tensor_axes[k] != key.tensor_axes[k - 1] + 1;
  Dims order;
  if (!apart) return order;
  for (int a : key.tensor_axes) order.push_back(a);
  for (int a = 0; a < n; ++a)
    if (std::find(key.tensor_axes.begin(), key.tensor_axes.end(), a) == key.tensor_axes.end()) order.push_back(a);
  return order;
}

Tensor reshaped(const Tensor& t, const Dims& shape) { return t.shape() == shape ? t : reshape(t, shape); }

// The window on x that the key's ints, slices and new axes show.
Tensor window(const Tensor& x, const Key& key) {
  Tensor t = x;
  Dims shape;
  int axis = 0;  // of t
  for (auto& a : key.axes) {
    if (a.kept) shape.push_back(a.range.count);
    if (a.of < 0) continue;
    if (!a.kept) {
      t = select(t, axis, a.range.start);
      continue;
    }
    if (a.range.count != x.shape()[a.of]) {
      int64_t end = a.range.count > 0 ? a.range.start + (a.range.count - 1) * a.range.step + 1 : a.range.start;
      t = slice(t, axis, a.range.start, end, a.range.step);
    }
    ++axis;
  }
  return reshaped(t, shape);
}

Dims without_tensors(const Dims& shape, const Key& key, const Dims& common) {
  Dims out;
  bool apart = order_of(key, shape.size()).size() > 0;
  auto put = [&] {
    for (int64_t n : common) out.push_back(n);
  };
  if (apart) put();
  for (int a = 0; a < shape.size(); ++a) {
    if (!apart && a == key.tensor_axes[0]) put();
    if (std::find(key.tensor_axes.begin(), key.tensor_axes.end(), a) == key.tensor_axes.end()) out.push_back(shape[a]);
  }
  return out;
}

// What the index ops are given: x, with the indexed axes together, and the index tensors.
std::vector<Tensor> operands(std::vector<Tensor> front, const Key& key) {
  front.insert(front.end(), key.tensors.begin(), key.tensors.end());
  return front;
}

Dims inverse(const Dims& order) {
  Dims back = order;
  for (int a = 0; a < order.size(); ++a) back[static_cast<int>(order[a])] = a;
  return back;
}

// The new value of x, by ops: for the tape, and for addends.
Tensor put_by_ops(const Tensor& x, const Key& key, Tensor value, bool accumulate) {
  Dims starts, steps, sizes, kept;
  for (auto& a : key.axes) {
    if (a.kept) kept.push_back(a.range.count);
    if (a.of < 0) continue;
    starts.push_back(a.range.start);
    steps.push_back(a.range.step);
    sizes.push_back(a.range.count);
  }
  if (!key.tensors.empty()) {
    Dims order = order_of(key, kept.size());
    Tensor w = window(x, key);
    if (order.size()) w = permute(w, order);
    w = index_put_axes(operands({w, value}, key), order.size() ? 0 : key.tensor_axes[0], accumulate);
    value = order.size() ? permute(w, inverse(order)) : w;
  } else if (accumulate) {
    value = add(window(x, key), value);
  }
  return window_put(x, reshaped(value, sizes), starts, steps, sizes);
}

// Straight into this rank's memory. value: whole and local, of the result's shape.
void put_here(const Tensor& x, const Key& key, const Array& value, bool accumulate) {
  Array a = x.array();
  if (!a.defined() || value.numel() == 0) return;
  Dims offset = Dims::filled(x.ndim(), 0);
  if (x.is_global())
    offset = region_of(x.shape(), x.placement(), x.nd_sbp(), x.placement().index_of(Context::current().rank())).offset;
  // The window on what is here, and the part of the value that belongs there.
  Dims shape, strides, first;
  int64_t start = 0;
  for (auto& k : key.axes) {
    if (k.of < 0) {
      shape.push_back(1), strides.push_back(0), first.push_back(0);
      continue;
    }
    int64_t begin = offset[k.of], end = begin + a.shape[k.of];
    auto reach = [&](int64_t bound) {
      return bound <= k.range.start ? 0 : ceil_div(bound - k.range.start, k.range.step);
    };
    int64_t low = reach(begin), high = std::min(k.range.count, reach(end));
    if (high <= low) return;
    start += (k.range.start + low * k.range.step - begin) * a.strides[k.of];
    if (!k.kept) continue;
    shape.push_back(high - low), strides.push_back(a.strides[k.of] * k.range.step), first.push_back(low);
  }
  Array w = a.view(shape, strides, start), v = value;
  if (key.tensors.empty()) {
    for (int d = 0; d < shape.size(); ++d) v.offset += first[d] * v.strides[d];
    v.shape = shape;
    if (accumulate)
      kernels::binary(kernels::BinaryOp::Add, w, v, w);
    else
      kernels::copy(v, w);
  } else {
    Dims order = order_of(key, shape.size());
    int axis = order.size() ? 0 : key.tensor_axes[0], k = static_cast<int>(key.tensors.size());
    Dims lengths;  // logical, of the window
    for (auto& d : key.axes)
      if (d.kept) lengths.push_back(d.range.count);
    if (order.size()) {
      Dims s, t, f, l;
      for (int64_t d : order) {
        int i = static_cast<int>(d);
        s.push_back(shape[i]), t.push_back(strides[i]), f.push_back(first[i]), l.push_back(lengths[i]);
      }
      shape = s, strides = t, first = f, lengths = l;
      w = w.view(shape, strides);
    }
    SmallVec<kernels::AxisPart, 8> parts;
    SmallVec<const Array*, 8> indices;
    std::vector<Array> held;
    for (auto& t : key.tensors) held.push_back(t.full().array());
    for (int i = 0; i < k; ++i) {
      parts.push_back({first[axis + i], lengths[axis + i]});
      indices.push_back(&at_index(held, i));
    }
    int nb = v.ndim() - (shape.size() - k);
    for (int d = 0; d < shape.size(); ++d) {
      if (d >= axis && d < axis + k) continue;
      int at = d < axis ? d : d - k + nb;
      v.offset += first[d] * v.strides[at];
      v.shape[at] = shape[d];
    }
    kernels::index_put_axes(w, axis, indices, parts, true, accumulate, v);
  }
}

}  // namespace

Tensor index(const Tensor& x, const std::vector<Index>& given) {
  Key key = read_key(x, given);
  Tensor t = window(x, key);
  if (!key.tensors.empty()) {
    Dims order = order_of(key, t.ndim());
    if (order.size()) t = permute(t, order);
    return index_axes(operands({t}, key), order.size() ? 0 : key.tensor_axes[0]);
  }
  return t.is_same(x) ? reshape(x, x.shape()) : t;  // its own tensor
}

void index_put_(const Tensor& x, const std::vector<Index>& given, Scalar value, bool accumulate) {
  index_put_(x, given, full({}, value, {.dtype = x.dtype()}), accumulate);
}

void index_put_(const Tensor& x, const std::vector<Index>& given, const Tensor& assigned, bool accumulate) {
  if (assigned.is_global() && x.is_local())
    fail_runtime("a global value cannot be assigned to a part of a local tensor. Use to_local() first.");
  check_shows_input("index_put", x);
  bool recording = grad_enabled() && (x.requires_grad() || assigned.requires_grad());
  if (recording) check_in_place("index_put", x);
  recording |= tracer() != nullptr;
  Tensor value = assigned.dtype() == x.dtype() ? assigned : cast(assigned, x.dtype());
  // One number under a mask needs no places: each rank asks its own part of the mask.
  if (given.size() == 1 && given[0].kind == Kind::kTensor && given[0].tensor.dtype() == boolean &&
      given[0].tensor.ndim() > 0 && value.numel() == 1 && !accumulate) {
    Tensor mask = ops::bring_beside(x, given[0].tensor);
    Dims shape = mask.shape();
    bool fits = shape.size() <= x.ndim();
    for (int a = 0; fits && a < shape.size(); ++a) fits = shape[a] == x.shape()[a];
    if (fits) {
      while (shape.size() < x.ndim()) shape.push_back(1);
      Tensor v = ops::bring_beside(x, reshaped(value, {}));
      return write_in_place("index_put", x, where(reshaped(mask, shape), v, x));
    }
  }
  Key key = read_key(x, given);
  Dims shape;
  for (auto& a : key.axes)
    if (a.kept) shape.push_back(a.range.count);
  if (!key.tensors.empty()) {
    Dims common;
    for (auto& t : key.tensors) common = broadcast_shapes(common, t.shape(), "index");
    shape = without_tensors(shape, key, common);
  }
  // As NumPy does, leading axes of size 1 too many are let go.
  Dims own = value.shape();
  while (own.size() > shape.size() && own[0] == 1) own.erase(0);
  bool fits = own.size() <= shape.size();
  for (int a = 0; fits && a < own.size(); ++a) fits = own[a] == shape[shape.size() - own.size() + a] || own[a] == 1;
  if (!fits)
    fail_value("a value of shape {} does not broadcast to the shape {} that it is assigned to.", value.shape(), shape);
  if (recording || (x.is_global() && x.nd_sbp().has_partial())) {
    value = ops::bring_beside(x, value);
    value = expand(reshaped(value, own), shape);
    return write_in_place("index_put", x, put_by_ops(x, key, value, accumulate));
  }
  NoGradGuard no_grad;
  Array source = value.full().array();
  if (source.storage == x.array().storage) source = clone(value).array();
  if (x.array().defined()) source = kernels::on_device(source, x.array().device);
  Tensor v = expand(reshaped(Tensor::local(source), own), shape);
  // Every rank has the indices brought to it, also where none of them falls.
  for (auto& t : key.tensors) t = Tensor::local(t.full().array());
  GradientForms::forget();
  put_here(x, key, v.array(), accumulate);
  if (x.array().defined()) ++x.array().storage->version;
}

}  // namespace holon
