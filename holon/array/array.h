// One rank's local data: a strided window on a storage.
#pragma once

#include "holon/array/device.h"
#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/array/storage.h"
#include "holon/base/index.h"

namespace holon {

struct Array {
  Ref<Storage> storage;
  int64_t offset = 0;  // of the first element, in elements
  Dims shape;
  Dims strides;  // in elements; 0 along an expanded axis
  DType dtype = DType::kFloat32;
  Device device;

  // Uninitialised, row-major.
  static Array empty(const Dims& shape, DType dtype, Device device = {});
  // Uninitialised with the given strides, which must address each element once within numel() elements.
  static Array empty_strided(const Dims& shape, const Dims& strides, DType dtype, Device device = {});

  // The same in pinned memory of the CPU (Storage::is_pinned); with HOLON_SIMULATE in ordinary memory. Errors
  // (RuntimeError): there is no device that copies from it; the system pins no more.
  static Array empty_pinned(const Dims& shape, const Dims& strides, DType dtype);

  // Without memory yet: its storage, which is its own, refers to nothing until it is bound (Storage::rebind).
  static Array placeholder(const Dims& shape, const Dims& strides, DType dtype, Device device = {});

  bool defined() const { return static_cast<bool>(storage); }
  bool is_pinned() const { return storage && storage->is_pinned(); }
  bool is_placeholder() const { return storage && !storage->data(); }
  int ndim() const { return shape.size(); }
  int64_t numel() const { return shape.numel(); }
  size_t nbytes() const { return to_size(numel()) * size_bytes(dtype); }
  bool is_contiguous() const;
  // Some order of the axes makes it contiguous: every element in one block, none twice.
  bool is_dense() const;

  std::byte* bytes() const { return storage->data() + offset * static_cast<int64_t>(size_bytes(dtype)); }
  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(bytes());
  }

  // A window on the same storage.
  Array view(const Dims& new_shape, const Dims& new_strides, int64_t extra_offset = 0) const;
};

// The strides with which `shape` can be seen in an array of the given shape and strides without a copy; false if it
// cannot.
bool view_strides(const Dims& shape, const Dims& strides, const Dims& new_shape, Dims* out);

}  // namespace holon
