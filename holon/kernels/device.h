// What a kernel begins with if its arrays may be on a device:
//
//   HOLON_ON_DEVICE(out, softmax, x, axis, out);
//
// runs the device's variant of it (variants.h), or it itself on copies in the host's memory. For the source file of the
// kernel: this header makes the kernel's table of variants, which backends only refer to.
#pragma once

#include "holon/base/index.h"
#include "holon/kernels/variants.h"

namespace holon::kernels {

template <auto kFunction>
constinit std::array<decltype(kFunction), kMaxDeviceTypes> KernelVariants<kFunction>::table{};
template <auto kFunction>
constinit decltype(kFunction) KernelVariants<kFunction>::recorder = nullptr;

namespace detail {

// Whether this thread records a chain (chain.h): a kernel is not to run then, but to say what it would do.
extern constinit thread_local bool recording;
// A kernel has no part in chains: the recording is given up.
void give_up_recording();

template <auto kFunction, class R, class... P, class... A>
R run_variant(R (*)(P...), const char* name, DeviceType type, A&&... args) {
  using Variants = KernelVariants<kFunction>;
  if (recording) [[unlikely]] {
    if (Variants::recorder) return Variants::recorder(std::forward<A>(args)...);
    give_up_recording();
    if constexpr (std::is_void_v<R>)
      return;
    else
      return R{};
  }
  if (auto* const variant = at_index(Variants::table, type)) return variant(std::forward<A>(args)...);
  return run_on_host(name, kFunction, std::forward<A>(args)...);
}

}  // namespace detail

// dst = src, where at least one of them is on a device: kernels::copy() for all pairs of devices. waits = false: where
// the host's side is pinned memory the copy is put on the stream only, and the host must let that memory be until it is
// done.
void copy_on_devices(const Array& src, Array& dst, bool waits = true);

}  // namespace holon::kernels

#define HOLON_ON_DEVICE(array, function, ...) \
  HOLON_ON_DEVICE_AS(array, #function, decltype(&function), function, __VA_ARGS__)

// The same for one of several functions of a name: `text` is its own, `pointer` the function's pointer type.
#define HOLON_ON_DEVICE_AS(array, text, pointer, function, ...)                      \
  do {                                                                               \
    if (!(array).device.is_host()) [[unlikely]]                                      \
      return ::holon::kernels::detail::run_variant<static_cast<pointer>(&function)>( \
          static_cast<pointer>(&function), text, (array).device.type, __VA_ARGS__);  \
  } while (0)
