#include "holon/kernels/cpu/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "holon/base/parallel.h"
#include "holon/kernels/add_n.h"

namespace holon::kernels {
namespace {

std::vector<unsigned char> pattern(size_t n, unsigned seed) {
  std::vector<unsigned char> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<unsigned char>((i * 2654435761u + seed) >> 13);
  return v;
}

TEST(Stream, CopiesEveryByteAndNoOther) {
  constexpr size_t kRoom = 64;
  for (size_t bytes : {0ul, 1ul, 63ul, 64ul, 127ul, 4096ul, 16384ul, 16385ul, 3ul * 16384 + 4096 + 100})
    for (size_t from : {0ul, 1ul, 24ul})
      for (size_t to : {0ul, 3ul, 32ul}) {
        auto src = pattern(bytes + 2 * kRoom, 1), dst = pattern(bytes + 2 * kRoom, 2), expected = dst;
        if (bytes) std::memcpy(&expected[kRoom / 2 + to], &src[kRoom / 2 + from], bytes);
        stream_bytes(dst.data() + kRoom / 2 + to, src.data() + kRoom / 2 + from, bytes);
        stream_fence();
        ASSERT_EQ(dst, expected) << bytes << " bytes from " << from << " to " << to;
      }
}

TEST(Stream, CopyBytesByThreadsAndPastTheCaches) {
  const int before = num_threads();
  for (int threads : {1, 3}) {
    set_num_threads(threads);
    for (size_t bytes : {size_t{600'001}, size_t{4'000'003}})
      for (size_t whole : {size_t{0}, kStreamCopyBytes}) {
        auto src = pattern(bytes, 3);
        std::vector<unsigned char> dst(bytes + 1, 0xee);
        copy_bytes(dst.data(), src.data(), bytes, whole);
        EXPECT_EQ(std::memcmp(dst.data(), src.data(), bytes), 0) << bytes << " " << whole;
        EXPECT_EQ(dst[bytes], 0xee);
        copy_bytes(dst.data(), dst.data(), bytes, whole);  // onto itself
        EXPECT_EQ(std::memcmp(dst.data(), src.data(), bytes), 0);
      }
  }
  set_num_threads(before);
}

// The bits of a large sum are those of its elements one by one, whatever the threads, the alignment and the block size.
TEST(Stream, LargeSumsHaveTheBitsOfSmallOnes) {
  const int before = num_threads();
  for (DType dtype : {float32, float16}) {
    const auto item = static_cast<int64_t>(size_bytes(dtype));
    const int64_t count = (9 << 20) / item + 13;
    std::vector<std::vector<unsigned char>> sources;
    for (unsigned k = 0; k < 3; ++k) {
      sources.emplace_back(static_cast<size_t>(count * item));
      visit_dtype(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        auto* x = reinterpret_cast<T*>(sources.back().data());
        for (int64_t i = 0; i < count; ++i)
          x[i] = static_cast<T>(static_cast<float>((i * 7919 + k * 31) % 1009) / 7.f - 60.f);
      });
    }
    std::vector<const void*> src;
    for (auto& s : sources) src.push_back(s.data());
    std::vector<unsigned char> one_by_one(static_cast<size_t>(count * item));
    for (int64_t i = 0; i < count; i += 1000) {
      std::vector<const void*> at;
      for (auto& s : sources) at.push_back(s.data() + i * item);
      add_n(one_by_one.data() + i * item, at, std::min<int64_t>(1000, count - i), dtype);
    }
    for (int threads : {1, 3})
      for (int64_t shift : {0, 1}) {
        set_num_threads(threads);
        std::vector<unsigned char> out(static_cast<size_t>((count + 2) * item), 0xee);
        add_n(out.data() + shift * item, src, count, dtype);
        EXPECT_EQ(std::memcmp(out.data() + shift * item, one_by_one.data(), one_by_one.size()), 0)
            << threads << " " << shift;
        EXPECT_EQ(out[static_cast<size_t>((count + shift) * item)], 0xee);
      }
    set_num_threads(3);
    add_n(sources[0].data(), src, count, dtype);  // in place
    EXPECT_EQ(sources[0], one_by_one);
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace holon::kernels
