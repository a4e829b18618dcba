// What the kernels of attention are told: attention.cu chooses them, attention_float*.cu and attention_bfloat16.cu have
// those by tiles.
#pragma once

#include "holon/kernels/attention.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"

namespace holon::kernels::cuda::attention {

// An array [b, h, rows, width] with adjacent columns; strides in elements.
struct Rows {
  void* data = nullptr;
  int64_t image = 0, head = 0, row = 0;
  bool packs = false;  // rows begin at multiples of 16 bytes and are as long
};

enum class MaskKind : uint8_t { kNone, kBool, kFloat, kSame };  // kSame: the dtype of q
struct Mask {
  const void* data = nullptr;
  int64_t image = 0, head = 0, row = 0, col = 0;
  MaskKind kind = MaskKind::kNone;
};

struct Numbers {
  Rows q, k, v, out, dout, dq, dk, dv;
  Mask mask;
  void* lse = nullptr;  // float, or double for float64
  int64_t lse_image = 0, lse_head = 0, lse_row = 0;
  void* delta = nullptr;  // [b, h, t]: dout . out, of lse's type
  int64_t b = 0, h = 0, t = 0, s = 0;
  int share = 1;  // heads of q for one of k
  int d = 0, e = 0;
  double scale = 1;
  bool causal = false;
  int64_t diagonal = 0;  // causal: query i sees the keys j <= i + diagonal
  // What a probability that is not dropped is multiplied by; draws below the threshold (of 2^32) are dropped.
  bool dropout = false;
  float factor = 1;
  double factor64 = 1;
  uint64_t threshold = 0, seed = 0, counter = 0;
  const uint64_t* seed_at = nullptr;  // RecordedDraw
  const int64_t* base_at = nullptr;
  int64_t first_image = 0, first_head = 0, first_query = 0, first_key = 0, heads = 0, queries = 0, groups = 0;
};

// The end of the keys that the queries before `end` see; the first query that sees key j.
HOLON_BOTH int64_t keys_seen(const Numbers& p, int64_t end) {
  if (!p.causal) return p.s;
  const int64_t n = (end < p.t ? end : p.t) + p.diagonal;
  return n < 0 ? 0 : n < p.s ? n : p.s;
}
HOLON_BOTH int64_t first_seeing(const Numbers& p, int64_t j) {
  const int64_t i = p.causal ? j - p.diagonal : 0;
  return i > 0 ? i : 0;
}

// The number of a row of probabilities, of which each begins with a group of draws of its own: p.groups of them.
HOLON_BOTH uint64_t draw_row(const Numbers& p, int64_t image, int64_t head, int64_t i) {
  return static_cast<uint64_t>(((p.first_image + image) * p.heads + p.first_head + head) * p.queries + p.first_query +
                               i);
}

HOLON_BOTH uint64_t draw_seed(const Numbers& p) { return p.seed_at ? *p.seed_at : p.seed; }
HOLON_BOTH uint64_t draw_counter(const Numbers& p) {
  return p.base_at ? p.counter + static_cast<uint64_t>(*p.base_at) : p.counter;
}

// The draws 16 w + block of a group of 64 (cpu/table.h: RandomBitsFn): Philox4x32-10, after Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3" (2011).
HOLON_BOTH void draw_words(uint64_t seed, uint64_t counter, uint64_t group, uint32_t block, uint32_t (&words)[4]) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  uint32_t a = static_cast<uint32_t>(group * 16) + block, b = static_cast<uint32_t>((group * 16) >> 32);
  uint32_t c = static_cast<uint32_t>(counter), d = static_cast<uint32_t>(counter >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{a} * 0xD2511F53u, q = uint64_t{c} * 0xCD9E8D57u;
    a = static_cast<uint32_t>(q >> 32) ^ b ^ k0;
    b = static_cast<uint32_t>(q);
    c = static_cast<uint32_t>(p >> 32) ^ d ^ k1;
    d = static_cast<uint32_t>(p);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

// Widths up to 256. Instantiated for float, Float16 and BFloat16.
template <class T>
void run_forward(const Numbers& p);
template <class T>
void run_backward(const Numbers& p);

}  // namespace holon::kernels::cuda::attention
