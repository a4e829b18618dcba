// What Python sees of the device backend: holon/cuda.py names it.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "holon/array/device_backend.h"
#include "holon/array/device_runtime.h"
#include "holon/array/vendor_library.h"
#include "holon/base/error.h"
#include "holon/kernels/cudnn.h"
#include "holon/kernels/tf32.h"
#include "holon/kernels/variants.h"

namespace holon::python {

namespace {

DeviceType cuda() {
  static const DeviceType type = parse_device_type("cuda");
  return type;
}

DeviceRuntime& runtime() {
  DeviceRuntime* r = device_runtime(cuda());
  if (!r) fail_runtime("there is no cuda device: {}.", why_no_device(cuda()));
  return *r;
}

DeviceRuntime& runtime_of(const Device& d) {
  if (d.is_host()) fail_value("the device {} is the host: it has no separate memory.", d);
  return *device_runtime(d);
}

nb::dict by_name(const MemoryStats& s) {
  nb::dict d;
  d["in_use_bytes"] = s.in_use_bytes;
  d["peak_bytes"] = s.peak_bytes;
  d["cached_bytes"] = s.cached_bytes;
  return d;
}

}  // namespace

void bind_cuda(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<DeviceEvent>(m, "CudaEvent", "A point in a rank's queue of work on a device: cuda.Event.")
      .def("record", &DeviceEvent::record, "Moves it after all work enqueued so far.")
      .def("query", &DeviceEvent::query, "Whether the work before it is done.")
      .def("synchronize", &DeviceEvent::synchronize, "Waits for the work before it.")
      .def("elapsed_ms", &DeviceEvent::elapsed_ms, nb::arg("since"), "Milliseconds from another event to this one.");
  m.def(
      "cuda_event", [](int index, bool timing) { return runtime().make_event(index, timing).release(); },
      nb::arg("index"), nb::arg("timing"), "A new event.");
  m.def(
      "cuda_device_count", [] { return device_runtime(cuda()) ? device_runtime(cuda())->device_count() : 0; },
      "How many cuda devices there are.");
  m.def(
      "why_no_device", [] { return device_runtime(cuda()) ? std::string() : why_no_device(cuda()); },
      "Why there is no cuda device; empty where there is one.");
  m.def(
      "cuda_backend_broken", [] { return device_backend_broken(cuda()); },
      "Whether there is a CUDA backend that cannot be loaded or has another version: why_no_device() returns the "
      "reason.");
  m.def(
      "cuda_properties",
      [](int index) {
        DeviceProperties p = runtime().properties(index);
        return nb::make_tuple(p.name, p.major, p.minor, p.total_bytes, p.multiprocessors);
      },
      "Name, major, minor, bytes and multiprocessors of a device.");
  m.def(
      "cuda_synchronize", [](int index) { runtime().synchronize(index); }, "Waits for this rank's work on a device.");
  m.def(
      "cuda_memory_stats", [](int index) { return by_name(runtime().memory_stats(index)); },
      "Bytes in use, at the peak and cached on a device.");
  m.def(
      "cuda_reset_peak_memory", [](int index) { runtime().reset_peak_memory(index); }, "Resets the peak.");
  m.def(
      "cuda_release_cached_memory",
      [](int index) {
        runtime().release_cached_memory(index);
        runtime().release_cached_pinned_memory();
      },
      "Frees a device's cached memory and the cached pinned memory.");
  m.def(
      "pinned_memory_stats", [] { return by_name(runtime().pinned_memory_stats()); },
      "Bytes of pinned memory in use, at the peak and cached.");
  m.def("set_package_folders", set_package_folders, "folders"_a,
        "The folders searched for pip packages with NVIDIA's libraries.");
  m.def(
      "load_vendor_library",
      [](const std::string& name) {
        VendorLibrary l = vendor_library(name);
        return nb::make_tuple(l.path, l.missing);
      },
      "name"_a, "Loads one of NVIDIA's libraries: its file, or empty and the reason.");
  m.def(
      "vendor_libraries",
      [] {
        nb::dict d;
        for (auto& l : vendor_libraries()) d[l.name.c_str()] = l.path.empty() ? "not found: " + l.missing : l.path;
        return d;
      },
      "The files of NVIDIA's libraries that are loaded, and why others are not.");
  m.def(
      "host_runs",
      [] {
        nb::dict d;
        for (auto& [name, count] : kernels::host_runs()) d[name.c_str()] = count;
        return d;
      },
      "How often each kernel function has run on copies of a device's arrays, on the CPU.");
  m.def(
      "tf32_products", [] { return kernels::tf32_allowed(kernels::Tf32::kProducts); },
      "Whether float32 products may use TF32 on devices.");
  m.def(
      "set_tf32_products", [](bool on) { kernels::allow_tf32(kernels::Tf32::kProducts, on); }, "Allows or forbids it.");
  m.def(
      "tf32_convolutions", [] { return kernels::tf32_allowed(kernels::Tf32::kConvolutions); },
      "The same for convolutions.");
  m.def(
      "set_tf32_convolutions", [](bool on) { kernels::allow_tf32(kernels::Tf32::kConvolutions, on); },
      "The same for convolutions.");
  m.def("cudnn_enabled", &kernels::cudnn_enabled, "Whether devices may leave convolutions and attention to cuDNN.");
  m.def("set_cudnn_enabled", &kernels::enable_cudnn, "Allows or forbids it.");
  m.def(
      "device_kernels",
      [](const std::string& type) {
        const DeviceType t = parse_device_type(type);
        return device_runtime(t) ? kernels::device_kernels(t) : std::vector<std::string>();
      },
      "type"_a = "cuda", "The kernels of which devices of the type have variants.");
  m.def("load_device_library", load_device_library, "path"_a,
        "Loads a backend, and returns the name of its type of devices.");
  m.def("device_types", device_types, "The names of the types of devices.");
  m.def(
      "synchronize_device", [](const Device& d) { runtime_of(d).synchronize(d.index); }, "device"_a,
      "Waits for this rank's work on a device.");
  m.def(
      "device_memory_stats", [](const Device& d) { return by_name(runtime_of(d).memory_stats(d.index)); }, "device"_a,
      "Bytes in use, at the peak and cached on a device.");
}

}  // namespace holon::python
