#include "holon/kernels/device.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <mutex>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"

namespace holon::kernels {

namespace {

struct Names {
  ProcessMutex mutex;
  std::array<std::vector<std::string>, kMaxDeviceTypes> variants;
  std::map<std::string, int64_t, std::less<>> host_runs;
};
Names& names() {
  static auto* n = new Names;
  return *n;
}

struct Extent {
  int64_t begin = 0, end = 0;  // in elements from the array's first
};
Extent extent_of(const Array& a) {
  if (a.numel() == 0) return {};
  Extent e{0, 1};
  for (int i = 0; i < a.ndim(); ++i) (a.strides[i] < 0 ? e.begin : e.end) += (a.shape[i] - 1) * a.strides[i];
  return e;
}

}  // namespace

std::vector<std::string> device_kernels(DeviceType type) {
  std::lock_guard lock(names().mutex);
  std::vector<std::string> list = at_index(names().variants, type);
  std::sort(list.begin(), list.end());
  return list;
}

std::vector<std::pair<std::string, int64_t>> host_runs() {
  std::lock_guard lock(names().mutex);
  return {names().host_runs.begin(), names().host_runs.end()};
}

namespace detail {

void note_variant(DeviceType type, const char* kernel, bool taken) {
  if (taken) fail_runtime("the kernel {} has two variants for {} devices. Leave one of them out.", kernel, name(type));
  std::lock_guard lock(names().mutex);
  at_index(names().variants, type).emplace_back(kernel);
}

void count_host_run(const char* name) {
  std::lock_guard lock(names().mutex);
  ++names().host_runs[name];
}

Array host_copy(const Array& a) {
  if (!a.defined() || a.device.is_host()) return a;
  DeviceRuntime& devices = *device_runtime(a.device);
  if (devices.capabilities().host_access) {
    devices.synchronize(a.device.index);
    Array same = a;
    same.device = {};
    return same;
  }
  const Extent e = extent_of(a);
  const auto item = static_cast<int64_t>(size_bytes(a.dtype));
  Array copy;
  copy.storage = allocate_storage(to_size((e.end - e.begin) * item));
  copy.offset = -e.begin;
  copy.shape = a.shape;
  copy.strides = a.strides;
  copy.dtype = a.dtype;
  if (e.end > e.begin)
    devices.copy_to_host(a.device.index, copy.storage->data(), a.bytes() + e.begin * item,
                         to_size((e.end - e.begin) * item));
  return copy;
}

void write_back(const Array& copy, const Array& to) {
  if (!to.defined() || to.device.is_host() || copy.storage.get() == to.storage.get()) return;
  const Extent e = extent_of(to);
  const auto item = static_cast<int64_t>(size_bytes(to.dtype));
  if (e.end > e.begin)
    device_runtime(to.device)->copy_from_host(to.device.index, to.bytes() + e.begin * item,
                                              copy.bytes() + e.begin * item, to_size((e.end - e.begin) * item));
}

}  // namespace detail

void copy_on_devices(const Array& src, Array& dst, bool waits) {
  constexpr auto kCopy = static_cast<void (*)(const Array&, Array&)>(&copy);
  if (dst.numel() == 0 && !detail::recording) return;
  if (src.device == dst.device || detail::recording)
    return detail::run_variant<kCopy>(kCopy, "copy", dst.device.type, src, dst);
  // Bytes travel between devices row by row and in the source's dtype: what else there is to do is done on either side.
  const Array packed = contiguous(src);
  if (!dst.is_contiguous() || dst.dtype != packed.dtype) {
    Array arrived = Array::empty(dst.shape, packed.dtype, dst.device);
    copy_on_devices(packed, arrived, waits);
    return copy(arrived, dst);
  }
  const int from = src.device.index, to = dst.device.index;
  if (src.device.is_host()) {
    DeviceRuntime& devices = *device_runtime(dst.device);
    if (!waits && devices.has_pinned(*packed.storage))
      devices.copy_from_pinned(to, dst.bytes(), packed.bytes(), dst.nbytes(), *packed.storage);
    else
      devices.copy_from_host(to, dst.bytes(), packed.bytes(), dst.nbytes());
  } else if (dst.device.is_host()) {
    DeviceRuntime& devices = *device_runtime(src.device);
    if (!waits && devices.has_pinned(*dst.storage))
      devices.copy_to_pinned(from, dst.bytes(), packed.bytes(), dst.nbytes(), *dst.storage);
    else
      devices.copy_to_host(from, dst.bytes(), packed.bytes(), dst.nbytes());
  } else if (src.device.type == dst.device.type && device_runtime(dst.device)->capabilities().peer_copies) {
    device_runtime(dst.device)->copy_between(to, dst.bytes(), from, packed.bytes(), dst.nbytes());
  } else {
    Array between = Array::empty(dst.shape, dst.dtype);
    copy_on_devices(packed, between);
    copy_on_devices(between, dst);
  }
}

Array on_device(const Array& a, Device device) {
  if (!a.defined() || (a.device.is_host() == device.is_host() && (device.is_host() || a.device == device))) {
    Array same = a;
    same.device = device;
    return same;
  }
  Array there = Array::empty(a.shape, a.dtype, device);
  copy(a, there);
  return there;
}

}  // namespace holon::kernels
