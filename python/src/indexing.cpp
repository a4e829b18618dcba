// x[key] and x[key] = value. Reading goes through ops, so that it is recorded and works on global tensors; writing goes to
// this rank's memory, and each rank writes what it holds.
#include <cstring>

#include "call.h"
#include "holon/base/context.h"
#include "holon/kernels/cpu/copy.h"

namespace holon::python {

namespace {

enum class Kind { kInt, kSlice, kNewAxis, kEllipsis, kIndices, kMask };

struct Item {
  Kind kind;
  int64_t at = 0;               // kInt
  PyObject* slice = nullptr;    // borrowed
  Tensor index = {};            // kIndices (int64, counted from 0 once bound), kMask
  int axes() const {            // of x that the item takes up
    switch (kind) {
      case Kind::kNewAxis:
      case Kind::kEllipsis: return 0;
      case Kind::kMask: return index.ndim();
      default: return 1;
    }
  }
  bool advanced() const { return kind == Kind::kIndices || kind == Kind::kMask; }
};
using Items = SmallVec<Item, 6>;

Item parse_item(PyObject* o) {
  int64_t at;
  if (o == Py_None) return {Kind::kNewAxis};
  if (o == Py_Ellipsis) return {Kind::kEllipsis};
  if (PySlice_Check(o)) return {Kind::kSlice, 0, o};
  bool list = PyList_Check(o) || PyTuple_Check(o) || is_numpy_array(o) || PyRange_Check(o);
  if (!PyBool_Check(o) && !list && to_int(o, &at)) return {Kind::kInt, at};
  Tensor t;
  if (is_tensor(o)) t = tensor_of(o);
  else if (list || PyBool_Check(o)) t = tensor_from_data(PyRange_Check(o) ? nb::list(nb::handle(o)) : nb::borrow(o), nb::none(), nb::none(), false, nb::none(), nb::none());
  else fail(ErrorKind::kIndex, "an index must be an int, a slice, None, ..., a tensor or a list; got {}.", describe(o));
  if (t.dtype() == boolean) return {Kind::kMask, 0, nullptr, t};
  if (t.numel() == 0 && !is_tensor(o)) t = OpCall("cast").in(t).set("dtype", int64).run();
  if (is_floating(t.dtype()))
    fail(ErrorKind::kIndex, "an index tensor must hold integers or bools, got {} {}. Convert it by .long().", name(t.dtype()), t.shape());
  if (t.dtype() != int64) t = OpCall("cast").in(t).set("dtype", int64).run();
  return {Kind::kIndices, 0, nullptr, t};
}

Items parse_key(const Tensor& x, PyObject* key) {
  Items items;
  if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) items.push_back(parse_item(PyTuple_GET_ITEM(key, i)));
  } else {
    items.push_back(parse_item(key));
  }
  int taken = 0, ellipses = 0;
  for (auto& i : items) {
    taken += i.axes();
    ellipses += i.kind == Kind::kEllipsis;
  }
  if (ellipses > 1) fail(ErrorKind::kIndex, "an index has one \"...\" at most.");
  if (taken > x.ndim()) fail(ErrorKind::kIndex, "{} indices for a tensor of {} axes, shape {}.", taken, x.ndim(), x.shape());
  return items;
}

struct Range {
  int64_t start, step, count;
};
Range range_of(PyObject* slice, int64_t n) {
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(slice, &start, &stop, &step) < 0) raise_python();
  if (step <= 0) fail_value("a slice of a tensor has a step of at least 1, got {}. Use flip() to turn an axis round.", step);
  Py_ssize_t count = PySlice_AdjustIndices(n, &start, &stop, step);
  return {start, step, count};
}

int64_t wrap_index(int64_t at, int64_t n, int axis) {
  if (at < -n || at >= n) fail(ErrorKind::kIndex, "index {} is out of range for axis {} of size {}.", at, axis, n);
  return at < 0 ? at + n : at;
}

int64_t int_at(const Array& a, int64_t flat) {
  int64_t offset = a.offset;
  for (int d = a.ndim() - 1; d >= 0; --d) {
    offset += flat % a.shape[d] * a.strides[d];
    flat /= a.shape[d];
  }
  return reinterpret_cast<const int64_t*>(a.storage->data())[offset];
}

// The index as whole local values counted from 0. Collective for a global index.
Array bound_indices(const Tensor& index, int64_t n, int axis) {
  Array in = index.full().array();
  Array out = Array::empty(in.shape, int64);
  for (int64_t i = 0; i < in.numel(); ++i) out.data<int64_t>()[i] = wrap_index(int_at(in, i), n, axis);
  return out;
}

// Where a mask is true, as one row of flat places.
Array true_places(const Tensor& mask) {
  Array m = mask.full().array();
  const bool* p = m.data<bool>();
  int64_t count = 0, n = m.numel();
  for (int64_t i = 0; i < n; ++i) count += p[i];
  Array out = Array::empty({count}, int64);
  for (int64_t i = 0, k = 0; i < n; ++i)
    if (p[i]) out.data<int64_t>()[k++] = i;
  return out;
}

// Local values that are alike on all ranks, beside x.
Tensor beside(const Tensor& x, const Array& values) {
  if (x.is_local()) return Tensor::local(values);
  auto* spec = intern_spec(x.placement(), NdSbp::filled(x.nd_sbp().size(), sbp::broadcast()));
  bool member = x.placement().contains(Context::current().rank());
  return Tensor::global(member ? values : Array(), values.shape, values.dtype, spec);
}

Tensor reshape(const Tensor& x, const Dims& shape) {
  return x.shape() == shape ? x : OpCall("reshape").in(x).set("shape", std::span<const int64_t>(shape)).run();
}

// One advanced index over `axes` neighbouring axes of x from `axis` on, as flat places in them, in the shape `shape`.
struct Advanced {
  int axis = 0, axes = 0;
  Dims shape;
  Array places;
};

// Joins the advanced items of axes axis, axis + 1, ... into one. sizes: x's shape.
Advanced join(std::span<const Item* const> items, const Dims& sizes, int axis) {
  Advanced a{axis, 0, {}, {}};
  struct Part {
    Array values;
    int64_t size;
  };
  SmallVec<Part, 4> parts;
  for (auto* item : items) {
    int at = axis + a.axes;
    if (item->kind == Kind::kMask) {
      int64_t n = 1;
      for (int d = 0; d < item->index.ndim(); ++d) {
        if (item->index.shape()[d] != sizes[at + d])
          fail(ErrorKind::kIndex, "a mask of shape {} does not fit the axes from {} on of a tensor of shape {}.", item->index.shape(), at, sizes);
        n *= sizes[at + d];
      }
      parts.push_back({true_places(item->index), n});
    } else {
      parts.push_back({bound_indices(item->index, sizes[at], at), sizes[at]});
    }
    a.axes += item->axes();
  }
  for (auto& p : parts) a.shape = broadcast_shapes(a.shape, p.values.shape, "index");
  if (parts.size() == 1) {
    a.places = parts[0].values;
    return a;
  }
  a.places = Array::empty(a.shape, int64);
  for (int64_t i = 0; i < a.shape.numel(); ++i) {
    int64_t place = 0;
    for (auto& p : parts) {
      int64_t rest = i, at = 0, stride = 1;
      for (int d = a.shape.size() - 1, e = p.values.ndim() - 1; d >= 0; --d, --e) {
        int64_t here = rest % a.shape[d];
        rest /= a.shape[d];
        if (e < 0) continue;
        if (p.values.shape[e] != 1) at += here * stride;
        stride *= p.values.shape[e];
      }
      place = place * p.size + p.values.data<int64_t>()[at];
    }
    a.places.data<int64_t>()[i] = place;
  }
  return a;
}

// The axes of the advanced items moved to neighbouring places: where they are apart, to the front, as in numpy.
// at[k]: the axis of items[k]. Returns the order to permute x to, empty if it stays.
Dims gather_axes(std::span<const Item* const> items, SmallVec<int, 4>& at, int ndim) {
  bool apart = false;
  for (size_t k = 1; k < items.size(); ++k) apart |= at[k] != at[k - 1] + items[k - 1]->axes();
  if (!apart) return {};
  Dims order;
  for (size_t k = 0; k < items.size(); ++k)
    for (int d = 0; d < items[k]->axes(); ++d) order.push_back(at[k] + d);
  for (int d = 0; d < ndim; ++d)
    if (std::find(order.begin(), order.end(), d) == order.end()) order.push_back(d);
  at[0] = 0;
  return order;
}

Tensor take(Tensor x, std::span<const Item* const> items, SmallVec<int, 4> at) {
  if (Dims order = gather_axes(items, at, x.ndim()); !order.empty())
    x = OpCall("permute").in(x).set("dims", std::span<const int64_t>(order)).run();
  Advanced a = join(items, x.shape(), at[0]);
  Dims merged, result;
  for (int d = 0; d < x.ndim(); ++d) {
    if (d == a.axis) {
      merged.push_back(1);
      for (int64_t n : a.shape) result.push_back(n);
    }
    if (d >= a.axis && d < a.axis + a.axes) merged[a.axis] *= x.shape()[d];
    else {
      merged.push_back(x.shape()[d]);
      result.push_back(x.shape()[d]);
    }
  }
  if (a.axes == 0) fail(ErrorKind::kIndex, "a mask without axes does not index a tensor of shape {}.", x.shape());
  Array flat = a.places.view({a.places.numel()}, {1});
  x = OpCall("index_select").in(reshape(x, merged)).set("dim", int64_t{a.axis}).in(beside(x, flat)).run();
  return reshape(x, result);
}

Tensor index(const Tensor& x, PyObject* key) {
  Items items = parse_key(x, key);
  int left = x.ndim();
  for (auto& i : items) left -= i.axes();
  Tensor t = x;
  int axis = 0;
  SmallVec<const Item*, 4> advanced;
  SmallVec<int, 4> at;
  for (auto& item : items) {
    switch (item.kind) {
      case Kind::kInt:
        t = OpCall("select").in(t).set("dim", int64_t{axis}).set("index", wrap_index(item.at, t.shape()[axis], axis)).run();
        break;
      case Kind::kSlice: {
        Range r = range_of(item.slice, t.shape()[axis]);
        if (r.count != t.shape()[axis])
          t = OpCall("slice").in(t).set("dim", int64_t{axis}).set("start", r.start).set("end", r.count > 0 ? r.start + (r.count - 1) * r.step + 1 : r.start).set("step", r.step).run();
        ++axis;
        break;
      }
      case Kind::kNewAxis:
        t = OpCall("unsqueeze").in(t).set("dim", int64_t{axis}).run();
        ++axis;
        break;
      case Kind::kEllipsis: axis += left; break;
      default:
        advanced.push_back(&item);
        at.push_back(axis);
        axis += item.axes();
    }
  }
  return advanced.empty() ? t : take(std::move(t), advanced, at);
}

// A window on this rank's part of x, and on the logical axes that it covers: `region` along each axis of the window.
struct Window {
  Array array;
  SmallVec<Range, 8> region;  // of the logical value that lies here: start counts the window's own elements
  Dims shape;                 // logical, of the window
};

Window window_of(const Tensor& x, const Items& items, SmallVec<const Item*, 4>& advanced, SmallVec<int, 4>& at) {
  const Array& a = x.array();
  Dims offset = Dims::filled(x.ndim(), 0);
  if (x.is_global()) offset = slice_of(x.shape(), x.placement(), x.nd_sbp(), x.placement().index_of(Context::current().rank())).offset;
  int left = x.ndim();
  for (auto& i : items) left -= i.axes();
  Window w;
  Dims shape, strides;
  int64_t start = 0;
  int d = 0;
  auto keep = [&](const Range& r) {
    // Which of the range's elements lie in [begin, end), and where.
    int64_t begin = offset[d], end = begin + a.shape[d];
    int64_t first = std::max<int64_t>(0, r.start >= begin ? 0 : (begin - r.start + r.step - 1) / r.step);
    int64_t last = r.start >= end ? 0 : std::min(r.count, (end - r.start + r.step - 1) / r.step);
    int64_t count = std::max<int64_t>(0, last - first);
    if (count > 0) start += (r.start + first * r.step - begin) * a.strides[d];
    shape.push_back(count);
    strides.push_back(a.strides[d] * r.step);
    w.region.push_back({first, 1, count});
    w.shape.push_back(r.count);
    ++d;
  };
  bool nothing = false;
  for (auto& item : items) {
    switch (item.kind) {
      case Kind::kInt: {
        int64_t i = wrap_index(item.at, x.shape()[d], d) - offset[d];
        if (i < 0 || i >= a.shape[d]) nothing = true;
        else start += i * a.strides[d];
        ++d;
        break;
      }
      case Kind::kSlice: keep(range_of(item.slice, x.shape()[d])); break;
      case Kind::kNewAxis:
        shape.push_back(1);
        strides.push_back(0);
        w.region.push_back({0, 1, 1});
        w.shape.push_back(1);
        break;
      case Kind::kEllipsis:
        for (int i = 0; i < left; ++i) keep({0, 1, x.shape()[d]});
        break;
      default:
        advanced.push_back(&item);
        at.push_back(shape.size());
        for (int i = item.axes(); i > 0; --i) keep({0, 1, x.shape()[d]});
    }
  }
  while (d < x.ndim()) keep({0, 1, x.shape()[d]});
  w.array = a.view(shape, strides, start);
  if (nothing || shape.numel() == 0) w.array = {};
  return w;
}

// The value's strides when it is broadcast to a shape. Errors: it does not broadcast.
Dims broadcast_strides(const Array& value, const Dims& shape) {
  Dims strides = Dims::filled(shape.size(), 0);
  int extra = value.ndim() - shape.size();
  for (int d = 0; d < value.ndim(); ++d) {
    int64_t n = value.shape[d];
    bool fits = d < extra ? n == 1 : n == shape[d - extra] || n == 1;
    if (!fits) fail_value("a value of shape {} does not broadcast to the shape {} that it is assigned to.", value.shape, shape);
    if (d >= extra && n != 1) strides[d - extra] = value.strides[d];
  }
  return strides;
}

void assign(const Window& w, const Array& value) {
  Dims strides = broadcast_strides(value, w.shape);
  if (!w.array.defined()) return;
  int64_t offset = 0;
  for (int d = 0; d < w.shape.size(); ++d) offset += w.region[static_cast<size_t>(d)].start * strides[d];
  Array dst = w.array;
  kernels::copy(value.view(dst.shape, strides, offset), dst);
}

// Writes block by block: one for each place of the joined index.
void assign_advanced(Window w, std::span<const Item* const> items, SmallVec<int, 4> at, const Array& value) {
  if (Dims order = gather_axes(items, at, w.shape.size()); !order.empty() && w.array.defined()) {
    Dims shape, strides, logical;
    for (int64_t d : order) {
      shape.push_back(w.array.shape[static_cast<int>(d)]);
      strides.push_back(w.array.strides[static_cast<int>(d)]);
      logical.push_back(w.shape[static_cast<int>(d)]);
    }
    w.array = w.array.view(shape, strides);
    w.shape = logical;
  }
  Advanced a = join(items, w.shape, at[0]);
  Dims result, block, block_strides, value_block;
  SmallVec<int, 8> index_dims;
  for (int d = 0; d <= w.shape.size(); ++d) {
    if (d == a.axis)
      for (int64_t n : a.shape) {
        index_dims.push_back(result.size());
        result.push_back(n);
      }
    if (d < w.shape.size() && (d < a.axis || d >= a.axis + a.axes)) result.push_back(w.shape[d]);
  }
  Dims strides = broadcast_strides(value, result);
  if (!w.array.defined()) return;
  for (int d = 0; d < w.shape.size(); ++d) {
    if (d >= a.axis && d < a.axis + a.axes) continue;
    block.push_back(w.shape[d]);
    block_strides.push_back(w.array.strides[d]);
    value_block.push_back(strides[d < a.axis ? d : d - a.axes + a.shape.size()]);
  }
  Array converted = value;
  for (int64_t i = 0; i < a.places.numel(); ++i) {
    int64_t to = 0, from = 0, place = a.places.data<int64_t>()[i], rest = i;
    for (int d = a.axis + a.axes - 1; d >= a.axis; --d) {
      to += place % w.shape[d] * w.array.strides[d];
      place /= w.shape[d];
    }
    for (int k = a.shape.size() - 1; k >= 0; --k) {
      from += rest % a.shape[k] * strides[index_dims[static_cast<size_t>(k)]];
      rest /= a.shape[k];
    }
    Array dst = w.array.view(block, block_strides, to);
    kernels::copy(converted.view(block, value_block, from), dst);
  }
}

// The value as whole local data in x's dtype. Collective for a global value.
Array value_of(const Tensor& x, PyObject* value) {
  Tensor t;
  if (is_tensor(value)) {
    t = tensor_of(value);
    if (t.is_global() && x.is_local()) fail_runtime("a global value cannot be assigned to a part of a local tensor. Use to_local() first.");
  } else {
    t = tensor_from_data(value, nb::none(), nb::none(), false, nb::none(), nb::none());
  }
  t = t.full();
  if (t.array().storage == x.array().storage) t = OpCall("clone").in(t).run();
  return t.dtype() == x.dtype() ? t.array() : OpCall("cast").in(t).set("dtype", x.dtype()).run().array();
}

}  // namespace

PyObject* get_item(PyObject* self, PyObject* key) {
  return guarded([&] {
    const Tensor& x = tensor_of(self);
    Tensor t = index(x, key);
    if (t == x) t = OpCall("view").in(x).set("shape", std::span<const int64_t>(x.shape())).run();  // x[...] is a tensor of its own
    return wrap(std::move(t));
  });
}

int set_item(PyObject* self, PyObject* key, PyObject* value) {
  return guarded([&] {
    const Tensor& x = tensor_of(self);
    if (!value) fail_type("elements of a tensor cannot be deleted.");
    bool value_grad = is_tensor(value) && tensor_of(value).requires_grad();
    if (grad_enabled() && (x.requires_grad() || value_grad))
      fail_runtime("x[...] = value while ops are recorded: gradients would not go through it. Use where() or cat(), or assign under no_grad().");
    if (x.is_global() && x.nd_sbp().has_partial())
      fail_runtime("x[...] = value on a tensor with sbp {}: its elements lie as addends. Bring it to broadcast or split by to_global first.", x.nd_sbp());
    NoGradGuard no_grad;
    Items items = parse_key(x, key);
    Array source = value_of(x, value);
    SmallVec<const Item*, 4> advanced;
    SmallVec<int, 4> at;
    for (auto& item : items)
      if (item.advanced() && x.is_global() && !x.nd_sbp().is_broadcast())
        fail(ErrorKind::kNotImplemented, "assigning through index tensors or masks to a global tensor with sbp {}. Use masked_fill or where, or bring "
             "it to broadcast first.", x.nd_sbp());
    for (auto& item : items)
      if (item.advanced()) item.index = item.index.full();
    if (!x.array().defined()) return 0;  // outside the placement: met the others, and has nothing to write
    Window w = window_of(x, items, advanced, at);
    if (advanced.empty()) assign(w, source);
    else assign_advanced(std::move(w), advanced, at, source);
    ++x.array().storage->version;
    return 0;
  }, -1);
}

}  // namespace holon::python
