// The kernels of toy devices. What is not here runs on the host.
#include <cstring>
#include <tuple>
#include <utility>

#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/reduce.h"
#include "holon/kernels/softmax.h"
#include "holon/kernels/variants.h"
#include "toy/memory.h"
#include "toy/stream.h"

namespace toy {

namespace {

using holon::Array;
using holon::Scalar;
namespace kernels = holon::kernels;

// A kernel of the toy's own. It leaves arrays with gaps to the host.
void fill(Array& out, Scalar value) {
  if (!out.is_dense()) return kernels::run_on_host("fill", &kernels::fill, out, value);
  const uint64_t bits = kernels::element_bits(value, out.dtype);
  const size_t size = holon::size_bytes(out.dtype);
  stream(out.device.index).put([to = out.bytes(), n = out.numel(), bits, size] {
    std::byte* at = bytes_at(to);
    for (int64_t i = 0; i < n; ++i) std::memcpy(at + static_cast<size_t>(i) * size, &bits, size);
  });
}
HOLON_DEVICE_KERNEL(fill, fill);

// The toy's cores are the host's: most of its kernels are the CPU's own, on the bytes that an array's addresses mean.
Array in_stream(const Array& a) {
  Array there = a;
  there.device = {};
  if (a.defined()) there.storage = holon::make_ref<holon::Storage>(bytes_at(a.storage->data()), a.storage->size());
  return there;
}
template <class T>
const T& in_stream(const T& argument) {
  return argument;
}

const Array* device_array(const Array& a) { return a.device.is_host() ? nullptr : &a; }
template <class T>
const Array* device_array(const T&) {
  return nullptr;
}

// Put on the stream of the device of its arrays.
template <auto kKernel>
struct InStream;
template <class... P, void (*kKernel)(P...)>
struct InStream<kKernel> {
  static void run(P... arguments) {
    const Array* any = nullptr;
    ((any = any ? any : device_array(arguments)), ...);
    stream(any->device.index).put([kept = std::tuple<std::decay_t<P>...>(in_stream(arguments)...)]() mutable {
      std::apply(kKernel, kept);
    });
  }
};

using Matmul = void (*)(const Array&, const Array&, Array&, double, double);

HOLON_DEVICE_KERNEL(copy, InStream<&kernels::copy>::run);
HOLON_DEVICE_KERNEL(unary, InStream<&kernels::unary>::run);
HOLON_DEVICE_KERNEL(binary, InStream<&kernels::binary>::run);
HOLON_DEVICE_KERNEL(binary_scalar, InStream<&kernels::binary_scalar>::run);
HOLON_DEVICE_KERNEL(ternary, InStream<&kernels::ternary>::run);
HOLON_DEVICE_KERNEL(where, InStream<&kernels::where>::run);
HOLON_DEVICE_KERNEL(masked_fill, InStream<&kernels::masked_fill>::run);
HOLON_DEVICE_KERNEL(reduce, InStream<&kernels::reduce>::run);
HOLON_DEVICE_KERNEL(softmax, InStream<&kernels::softmax>::run);
HOLON_DEVICE_KERNEL(softmax_backward, InStream<&kernels::softmax_backward>::run);
HOLON_DEVICE_KERNEL(log_softmax, InStream<&kernels::log_softmax>::run);
HOLON_DEVICE_KERNEL_AS(matmul, Matmul, InStream<static_cast<Matmul>(&kernels::matmul)>::run);

}  // namespace

}  // namespace toy
