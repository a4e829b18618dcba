#include "holon/array/array.h"

#include <algorithm>

#include "holon/array/device_backend.h"
#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon {

namespace {

size_t checked_bytes(const Dims& shape, DType dtype) {
  for (int64_t x : shape)
    if (x < 0) fail_value("shape {} has a negative size.", shape);
  size_t n;
  if (__builtin_mul_overflow(to_size(shape.numel()), size_bytes(dtype), &n) || n > (size_t{1} << 62))
    fail_value("shape {} of {} has more bytes than the address space.", shape, name(dtype));
  return n;
}

}  // namespace

Array Array::placeholder(const Dims& shape, const Dims& strides, DType dtype, Device device) {
  Array a;
  a.storage = make_ref<Storage>(nullptr, 0);
  a.shape = shape;
  a.strides = strides;
  a.dtype = dtype;
  a.device = device;
  return a;
}

Array Array::empty(const Dims& shape, DType dtype, Device device) {
  return empty_strided(shape, contiguous_strides(shape), dtype, device);
}

Array Array::empty_strided(const Dims& shape, const Dims& strides, DType dtype, Device device) {
  Array a;
  const size_t bytes = checked_bytes(shape, dtype);
  a.storage = allocate_storage(bytes, device);
  a.shape = shape;
  a.strides = strides;
  a.dtype = dtype;
  a.device = device;
  return a;
}

Array Array::empty_pinned(const Dims& shape, const Dims& strides, DType dtype) {
  const size_t bytes = checked_bytes(shape, dtype);
  Array a;
  if (DeviceRuntime* pinning = pinning_runtime()) {
    a.storage = pinning->allocate_pinned(bytes);
  } else {
    if (!is_simulated(kFirstDeviceType))
      fail_runtime("pin_memory: pinned memory was requested for {0} of {1}, but it only serves copies to {2} devices "
                   "and there is "
                   "none: {3}. Leave pin_memory out, or set HOLON_SIMULATE={2} to try the program without a device.",
                   shape, name(dtype), name(kFirstDeviceType), why_no_device(kFirstDeviceType));
    a.storage = allocate_storage(bytes);
  }
  a.shape = shape;
  a.strides = strides;
  a.dtype = dtype;
  return a;
}

bool Array::is_contiguous() const {
  if (numel() == 0) return true;
  int64_t step = 1;
  for (int i = ndim() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

bool Array::is_dense() const {
  int order[kMaxAxes] = {}, n = 0;
  for (int i = 0; i < ndim(); ++i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1) order[n++] = i;
  }
  std::sort(order, order + n, [&](int a, int b) { return strides[a] < strides[b]; });
  int64_t step = 1;
  for (int i = 0; i < n; ++i) {
    if (strides[order[i]] != step) return false;
    step *= shape[order[i]];
  }
  return true;
}

Array Array::view(const Dims& new_shape, const Dims& new_strides, int64_t extra_offset) const {
  Array a = *this;
  a.shape = new_shape;
  a.strides = new_strides;
  a.offset += extra_offset;
  return a;
}

bool view_strides(const Dims& shape, const Dims& strides, const Dims& new_shape, Dims* out) {
  out->resize(0);
  out->resize(new_shape.size(), 1);
  if (new_shape.numel() == 0) {
    *out = contiguous_strides(new_shape);
    return true;
  }
  // Walk from the last axis: each run of axes that is contiguous in memory may be cut again.
  int j = new_shape.size() - 1;
  int64_t run = 1, filled = 1, base = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (run == 1) base = strides[i];
    run *= shape[i];
    int64_t next = 0;
    bool ends = true;
    for (int k = i - 1; k >= 0; --k) {
      if (shape[k] == 1) continue;
      next = strides[k];
      ends = false;
      break;
    }
    if (!ends && shape[i] == 1 && run == 1) continue;
    if (ends || next != run * base) {
      while (j >= 0 && (filled < run || new_shape[j] == 1)) {
        (*out)[j] = filled * base;
        filled *= new_shape[j];
        --j;
      }
      if (filled != run) return false;
      run = filled = 1;
      if (ends) break;
    }
  }
  return true;
}

}  // namespace holon
