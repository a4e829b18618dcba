// Kernels on devices other than the CPU. A kernel function whose arrays may lie on a device begins with
//
//   HOLON_ON_DEVICE(out, softmax, x, axis, out);
//
// which calls the device's form of it. A form is declared in the backend by HOLON_DEVICE_KERNEL(softmax, cuda_softmax),
// with the same parameters. Where there is none yet the function runs on the CPU, on copies: right, slow and counted.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "holon/array/array.h"

namespace holon::kernels {

using AnyKernel = void (*)();
void register_device_kernel(const char* name, AnyKernel form);
AnyKernel find_device_kernel(const char* name);  // nullptr where there is none
std::vector<std::string> device_kernels();       // the names of all forms, sorted

// How often each kernel function has run on copies in this process, by name.
std::vector<std::pair<std::string, int64_t>> host_runs();

namespace detail {

void count_host_run(const char* name);

// A copy on the CPU with the same strides; the array itself where it lies there or is undefined.
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

namespace detail {

// Whether this thread records a chain (chain.h): a kernel function is not to run then, but to say what it would do.
extern constinit thread_local bool recording;
// nullptr where a function has no part in chains: the recording is given up.
AnyKernel recorded_form(const char* name);
template <class R, class... P, class... A>
R record(const char* name, R (*)(P...), A&&... args) {
  if (auto form = reinterpret_cast<R (*)(P...)>(recorded_form(name))) return form(std::forward<A>(args)...);
  if constexpr (!std::is_void_v<R>) return R{};
}

}  // namespace detail

// dst = src, where at least one of them lies on a device: kernels::copy() for all pairs of devices.
// waits = false: where the host's side is pinned memory the copy is put on the stream only, and the host must let that
// memory be until it is done.
void copy_on_devices(const Array& src, Array& dst, bool waits = true);

template <class F>
F device_kernel(const char* name) {
  return reinterpret_cast<F>(find_device_kernel(name));
}

}  // namespace holon::kernels

#define HOLON_ON_DEVICE(array, function, ...)                                                   \
  do {                                                                                          \
    if ((array).device.is_cuda()) [[unlikely]] {                                                \
      if (::holon::kernels::detail::recording) [[unlikely]]                                     \
        return ::holon::kernels::detail::record(#function, &function, __VA_ARGS__);             \
      static const auto form = ::holon::kernels::device_kernel<decltype(&function)>(#function); \
      if (form) return form(__VA_ARGS__);                                                       \
      return ::holon::kernels::run_on_host(#function, &function, __VA_ARGS__);                  \
    }                                                                                           \
  } while (0)

// The same for one of several functions of a name: `form_name` is its own, `type` the function's pointer type.
#define HOLON_ON_DEVICE_AS(array, form_name, type, function, ...)                                      \
  do {                                                                                                 \
    if ((array).device.is_cuda()) [[unlikely]] {                                                       \
      if (::holon::kernels::detail::recording) [[unlikely]]                                            \
        return ::holon::kernels::detail::record(form_name, static_cast<type>(&function), __VA_ARGS__); \
      static const auto form = ::holon::kernels::device_kernel<type>(form_name);                       \
      if (form) return form(__VA_ARGS__);                                                              \
      return ::holon::kernels::run_on_host(form_name, static_cast<type>(&function), __VA_ARGS__);      \
    }                                                                                                  \
  } while (0)

// In the backend: the form of a kernel function of holon::kernels.
#define HOLON_DEVICE_KERNEL(name, form)                                             \
  static_assert(std::is_same_v<decltype(&::holon::kernels::name), decltype(&form)>, \
                "the form's parameters are not those of " #name);                   \
  static const bool holon_device_kernel_##name =                                    \
      (::holon::kernels::register_device_kernel(#name, reinterpret_cast<::holon::kernels::AnyKernel>(&form)), true)
#define HOLON_DEVICE_KERNEL_AS(form_name, type, form)                                            \
  static const bool holon_device_kernel_##form_name =                                            \
      (::holon::kernels::register_device_kernel(                                                 \
           #form_name, reinterpret_cast<::holon::kernels::AnyKernel>(static_cast<type>(&form))), \
       true)
