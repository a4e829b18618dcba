// A kernel is a function on arrays, which a header of this folder declares and the CPU runs. A backend
// (holon/array/device_backend.h) brings variants of some of them for its type of devices, with the same parameters:
//
//   void softmax_on_toy(const Array& x, int axis, Array& out);
//   HOLON_DEVICE_KERNEL(softmax, softmax_on_toy);
//
// A call of softmax() runs the variant for the device of its arrays. A kernel without one runs on the CPU, on copies:
// right, slow and counted. A variant may leave a part of its cases to that, too (run_on_host).
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "holon/array/array.h"
#include "holon/array/device_backend.h"

namespace holon::kernels {

// The variants of a kernel, by type of device; nullptr where there is none. Told apart by the function's address, so
// that overloads have variants of their own. There is one table in a process: where the kernel itself is (device.h).
template <auto kFunction>
struct KernelVariants {
  using Function = decltype(kFunction);
  static std::array<Function, kMaxDeviceTypes> table;
  static Function recorder;  // for chains (chain.h)
};

// The names of the kernels of which a type of devices has variants, sorted.
std::vector<std::string> device_kernels(DeviceType type);

// How often each kernel has run on copies in this process, by name.
std::vector<std::pair<std::string, int64_t>> host_runs();

namespace detail {

// Errors: the type has a variant of it already.
void note_variant(DeviceType type, const char* name, bool taken);

template <auto kFunction>
void add_variant(DeviceType type, const char* name, decltype(kFunction) variant) {
  auto& slot = KernelVariants<kFunction>::table[static_cast<size_t>(type)];
  note_variant(type, name, slot != nullptr);
  slot = variant;
}

void count_host_run(const char* name);

// The array in the host's memory with the same strides: a copy, or itself where the host may use its memory.
Array host_copy(const Array& a);
// Writes such a copy back to where it came from.
void write_back(const Array& copy, const Array& to);

// An argument as the CPU's function may have it.
template <class P>
struct Staged {
  explicit Staged(P value) : value(static_cast<P&&>(value)) {}
  P get() { return static_cast<P&&>(value); }
  P value;
};
template <>
struct Staged<const Array&> {
  explicit Staged(const Array& a) : copy(host_copy(a)) {}
  const Array& get() { return copy; }
  Array copy;
};
template <>
struct Staged<Array&> {
  explicit Staged(Array& a) : to(a), copy(host_copy(a)) {}
  ~Staged() noexcept(false) {
    if (!std::uncaught_exceptions()) write_back(copy, to);
  }
  Array& get() { return copy; }
  Array& to;
  Array copy;
};
template <>
struct Staged<const Array*> {
  explicit Staged(const Array* a) : given(a) {
    if (a) copy = host_copy(*a);
  }
  const Array* get() { return given ? &copy : nullptr; }
  const Array* given;
  Array copy;
};
template <>
struct Staged<Array*> {
  explicit Staged(Array* a) : to(a) {
    if (a) copy = host_copy(*a);
  }
  ~Staged() noexcept(false) {
    if (to && !std::uncaught_exceptions()) write_back(copy, *to);
  }
  Array* get() { return to ? &copy : nullptr; }
  Array* to;
  Array copy;
};
template <>
struct Staged<std::span<const Array* const>> {
  explicit Staged(std::span<const Array* const> given) : copies(given.size()) {
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i]) copies[i] = host_copy(*given[i]);
      pointers.push_back(given[i] ? &copies[i] : nullptr);
    }
  }
  std::span<const Array* const> get() { return pointers; }
  std::vector<Array> copies;
  std::vector<const Array*> pointers;
};

// What such a function may write to.
template <>
struct Staged<std::span<const Array>> {
  explicit Staged(std::span<const Array> given) : given(given) {
    for (const Array& a : given) copies.push_back(host_copy(a));
  }
  ~Staged() noexcept(false) {
    if (std::uncaught_exceptions()) return;
    for (size_t i = 0; i < copies.size(); ++i) write_back(copies[i], given[i]);
  }
  std::span<const Array> get() { return copies; }
  std::span<const Array> given;
  std::vector<Array> copies;
};

}  // namespace detail

template <class R, class... P, class... A>
R run_on_host(const char* name, R (*function)(P...), A&&... args) {
  detail::count_host_run(name);
  std::tuple<detail::Staged<P>...> staged(std::forward<A>(args)...);
  return std::apply([&](auto&... s) { return function(s.get()...); }, staged);
}

}  // namespace holon::kernels

// In a backend: its variant of a kernel of holon::kernels.
#define HOLON_DEVICE_KERNEL(name, variant)                                             \
  static_assert(std::is_same_v<decltype(&::holon::kernels::name), decltype(&variant)>, \
                "the variant's parameters are not those of " #name);                   \
  HOLON_DEVICE_KERNEL_AS(name, decltype(&::holon::kernels::name), variant)
// The same for one of several functions of a name, which has the pointer type `type`.
#define HOLON_DEVICE_KERNEL_AS(name, type, variant)                                                                    \
  static const bool holon_device_kernel_##name = ::holon::on_device_registration([](::holon::DeviceType device_type) { \
    ::holon::kernels::detail::add_variant<static_cast<type>(&::holon::kernels::name)>(device_type, #name,              \
                                                                                      static_cast<type>(&variant));    \
  })
