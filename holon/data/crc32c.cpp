#include "holon/data/crc32c.h"

#include <array>
#include <cstring>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace holon::data {

namespace {

using Table = std::array<uint32_t, 256>;

constexpr Table kTable = [] {
  Table table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0);
    table[i] = c;
  }
  return table;
}();

uint32_t table_step(uint32_t c, std::byte b) { return c >> 8 ^ kTable[(c ^ std::to_integer<uint32_t>(b)) & 0xff]; }

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))

// An instruction takes three cycles, of which a new one can begin in each: so four stretches of kLane bytes are taken
// at a time, and their sums are joined.
constexpr size_t kLane = 2048, kLanes = 4;

// What kLane bytes of zero make of a sum: linear in its bits, so a table for each of its bytes says it.
struct Shift {
  Table byte[4];
  Shift() {
    uint32_t bit[32];
    for (uint32_t k = 0; k < 32; ++k) {
      bit[k] = uint32_t{1} << k;
      for (size_t i = 0; i < kLane; ++i) bit[k] = table_step(bit[k], std::byte{0});
    }
    for (uint32_t b = 0; b < 4; ++b)
      for (uint32_t i = 0; i < 256; ++i) {
        byte[b][i] = 0;
        for (uint32_t k = 0; k < 8; ++k)
          if (i >> k & 1) byte[b][i] ^= bit[8 * b + k];
      }
  }
  uint32_t operator()(uint32_t c) const {
    return byte[0][c & 0xff] ^ byte[1][c >> 8 & 0xff] ^ byte[2][c >> 16 & 0xff] ^ byte[3][c >> 24];
  }
};

uint64_t word(const std::byte* p) {
  uint64_t w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

#if defined(__x86_64__)
#define HOLON_CRC_TARGET __attribute__((target("sse4.2")))
HOLON_CRC_TARGET inline uint64_t step(uint64_t c, uint64_t w) { return __builtin_ia32_crc32di(c, w); }
bool has_instructions() { return __builtin_cpu_supports("sse4.2"); }
#else
#define HOLON_CRC_TARGET __attribute__((target("+crc")))
HOLON_CRC_TARGET inline uint64_t step(uint64_t c, uint64_t w) {
  return __builtin_aarch64_crc32cx(static_cast<uint32_t>(c), w);
}
bool has_instructions() { return getauxval(AT_HWCAP) & (1 << 7); }  // HWCAP_CRC32
#endif

HOLON_CRC_TARGET uint32_t by_instructions(std::span<const std::byte> bytes, uint32_t crc) {
  static const Shift shift;
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  uint64_t c = ~crc;
  for (; left >= kLanes * kLane; p += kLanes * kLane, left -= kLanes * kLane) {
    uint64_t c1 = 0, c2 = 0, c3 = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      c = step(c, word(p + i));
      c1 = step(c1, word(p + kLane + i));
      c2 = step(c2, word(p + 2 * kLane + i));
      c3 = step(c3, word(p + 3 * kLane + i));
    }
    auto joined = [](uint64_t before, uint64_t sum) { return shift(static_cast<uint32_t>(before)) ^ sum; };
    c = joined(joined(joined(c, c1), c2), c3);
  }
  for (; left >= 8; p += 8, left -= 8) c = step(c, word(p));
  auto last = static_cast<uint32_t>(c);
  for (; left > 0; ++p, --left) last = table_step(last, *p);
  return ~last;
}

#else
bool has_instructions() { return false; }
uint32_t by_instructions(std::span<const std::byte> bytes, uint32_t crc) { return crc32c_by_table(bytes, crc); }
#endif

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t crc) {
  uint32_t c = ~crc;
  for (std::byte b : bytes) c = table_step(c, b);
  return ~c;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  static const bool instructions = has_instructions();
  return instructions ? by_instructions(bytes, crc) : crc32c_by_table(bytes, crc);
}

}  // namespace holon::data
