#include "holon/kernels/device.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/base/fork.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"

namespace holon::kernels {

namespace {

struct Forms {
  ProcessMutex mutex;
  std::map<std::string, AnyKernel, std::less<>> forms;
  std::map<std::string, int64_t, std::less<>> host_runs;
};
Forms& forms() {
  static auto* f = new Forms;
  return *f;
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

void register_device_kernel(const char* name, AnyKernel form) {
  std::lock_guard lock(forms().mutex);
  HOLON_CHECK(forms().forms.emplace(name, form).second, "kernel {} has two forms for a device", name);
}

AnyKernel find_device_kernel(const char* name) {
  std::lock_guard lock(forms().mutex);
  auto found = forms().forms.find(std::string_view(name));
  return found == forms().forms.end() ? nullptr : found->second;
}

std::vector<std::string> device_kernels() {
  std::lock_guard lock(forms().mutex);
  std::vector<std::string> names;
  for (auto& [name, form] : forms().forms) names.push_back(name);
  return names;
}

std::vector<std::pair<std::string, int64_t>> host_runs() {
  std::lock_guard lock(forms().mutex);
  return {forms().host_runs.begin(), forms().host_runs.end()};
}

namespace detail {

void count_host_run(const char* name) {
  std::lock_guard lock(forms().mutex);
  ++forms().host_runs[name];
}

Array host_copy(const Array& a) {
  if (!a.defined() || !a.device.is_cuda()) return a;
  const Extent e = extent_of(a);
  const auto item = static_cast<int64_t>(size_bytes(a.dtype));
  Array copy;
  copy.storage = allocate_storage(static_cast<size_t>((e.end - e.begin) * item));
  copy.offset = -e.begin;
  copy.shape = a.shape;
  copy.strides = a.strides;
  copy.dtype = a.dtype;
  if (e.end > e.begin)
    device_runtime()->copy_to_host(a.device.index, copy.storage->data(), a.bytes() + e.begin * item,
                                   static_cast<size_t>((e.end - e.begin) * item));
  return copy;
}

void write_back(const Array& copy, const Array& to) {
  if (!to.defined() || !to.device.is_cuda()) return;
  const Extent e = extent_of(to);
  const auto item = static_cast<int64_t>(size_bytes(to.dtype));
  if (e.end > e.begin)
    device_runtime()->copy_from_host(to.device.index, to.bytes() + e.begin * item, copy.bytes() + e.begin * item,
                                     static_cast<size_t>((e.end - e.begin) * item));
}

}  // namespace detail

void copy_on_devices(const Array& src, Array& dst, bool waits) {
  if (detail::recording) [[unlikely]]
    return detail::record("copy", &copy, src, dst);
  if (dst.numel() == 0) return;
  if (src.device == dst.device) {
    static const auto form = device_kernel<decltype(&copy)>("copy");
    return form ? form(src, dst) : run_on_host("copy", &copy, src, dst);
  }
  // Bytes travel between devices row by row and in the source's dtype: what else there is to do is done on either side.
  DeviceRuntime& devices = *device_runtime();
  const Array packed = contiguous(src);
  if (!dst.is_contiguous() || dst.dtype != packed.dtype) {
    Array arrived = Array::empty(dst.shape, packed.dtype, dst.device);
    copy_on_devices(packed, arrived, waits);
    return copy(arrived, dst);
  }
  if (!src.device.is_cuda() && !waits && packed.is_pinned())
    devices.copy_from_pinned(dst.device.index, dst.bytes(), packed.bytes(), dst.nbytes(), *packed.storage);
  else if (!dst.device.is_cuda() && !waits && dst.is_pinned())
    devices.copy_to_pinned(src.device.index, dst.bytes(), packed.bytes(), dst.nbytes(), *dst.storage);
  else if (!src.device.is_cuda())
    devices.copy_from_host(dst.device.index, dst.bytes(), packed.bytes(), dst.nbytes());
  else if (!dst.device.is_cuda())
    devices.copy_to_host(src.device.index, dst.bytes(), packed.bytes(), dst.nbytes());
  else
    devices.copy_between(dst.device.index, dst.bytes(), src.device.index, packed.bytes(), dst.nbytes());
}

Array on_device(const Array& a, Device device) {
  if (!a.defined() ||
      (a.device.is_cuda() == device.is_cuda() && (!device.is_cuda() || a.device.index == device.index))) {
    Array same = a;
    same.device = device;
    return same;
  }
  Array there = Array::empty(a.shape, a.dtype, device);
  copy(a, there);
  return there;
}

}  // namespace holon::kernels
