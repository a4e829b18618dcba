// Sorting, selection and sums of integers on the emulated device: loops, one thread. What the library may leave behind
// in its workspace and in spare buffers is all ones here.

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"
#include "holon/base/fmt.h"
#include "holon/kernels/cuda/stream.h"
#include "holon/kernels/cuda/vendor_cub.h"

namespace holon::kernels::cuda {
namespace {

struct Buffer {
  const void* data;
  size_t bytes, alignment;
  template <class T>
  Buffer(const T* data, int64_t count)
      : data(data), bytes(static_cast<size_t>(count) * sizeof(T)), alignment(sizeof(T)) {}
};

void require(bool valid, const char* call, const char* what) {
  if (!valid) fail(fmt::format("{}: {}", call, what).c_str());
}

void require_apart(const char* call, std::initializer_list<Buffer> buffers) {
  for (const Buffer& a : buffers) {
    const auto begin = reinterpret_cast<uintptr_t>(a.data);
    require(begin != 0 && begin % a.alignment == 0, call, "a buffer is null or not aligned");
    for (const Buffer& b : buffers) {
      const auto other = reinterpret_cast<uintptr_t>(b.data);
      require(&a == &b || begin + a.bytes <= other || other + b.bytes <= begin, call, "two buffers overlap");
    }
  }
}

// The workspace is only the call's: it is overwritten when the work is done, in the stream's order.
template <class Work>
void run(size_t workspace_bytes, Work work) {
  const Scratch workspace(workspace_bytes);
  auto* bytes = workspace.data<unsigned char>();
  emulator::enqueue(stream(), [=] {
    std::memset(bytes, 0xff, workspace_bytes);
    work();
  });
}

template <class K>
void sort(Buffers<K>& keys, Buffers<uint32_t>& values, int64_t count, int bits) {
  const char* call = "sort_pairs";
  require(count > 0 && count < int64_t{1} << 32, call, "the count is not from 1 to 2^32 - 1");
  require(bits > 0 && bits <= static_cast<int>(sizeof(K)) * 8, call, "a key does not have so many bits");
  require_apart(call, {{keys.current, count}, {keys.other, count}, {values.current, count}, {values.other, count}});
  const K mask = ~K{0} >> (static_cast<int>(sizeof(K)) * 8 - bits);
  run(static_cast<size_t>(count) / 4 + 1024, [=, from = keys, values_from = values] {
    const auto n = static_cast<size_t>(count);
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t i, uint32_t j) { return (from.current[i] & mask) < (from.current[j] & mask); });
    for (size_t i = 0; i < n; ++i) {
      from.other[i] = from.current[order[i]];
      values_from.other[i] = values_from.current[order[i]];
    }
    std::memset(from.current, 0xff, n * sizeof(K));
    std::memset(values_from.current, 0xff, n * sizeof(uint32_t));
  });
  std::swap(keys.current, keys.other);
  std::swap(values.current, values.other);
}

}  // namespace

void sort_pairs(Buffers<uint32_t>& keys, Buffers<uint32_t>& values, int64_t count, int bits) {
  sort(keys, values, count, bits);
}
void sort_pairs(Buffers<uint64_t>& keys, Buffers<uint32_t>& values, int64_t count, int bits) {
  sort(keys, values, count, bits);
}

void select_flagged(const uint8_t* flags, int64_t count, uint32_t* positions, int64_t* found) {
  require(count > 0 && count < int64_t{1} << 31, "select_flagged", "the count is not from 1 to 2^31 - 1");
  require_apart("select_flagged", {{flags, count}, {positions, count}, {found, 1}});
  run(static_cast<size_t>(count) / 4 + 1024, [=] {
    *found = 0;
    for (int64_t i = 0; i < count; ++i)
      if (flags[i]) positions[(*found)++] = static_cast<uint32_t>(i);
  });
}

void sum_flags(const uint8_t* flags, int64_t count, int64_t* sums) {
  require(count > 0, "sum_flags", "there are no flags");
  require_apart("sum_flags", {{flags, count}, {sums, count}});
  run(static_cast<size_t>(count) / 4 + 1024,
      [=] { std::inclusive_scan(flags, flags + count, sums, std::plus<>(), int64_t{0}); });
}

}  // namespace holon::kernels::cuda
