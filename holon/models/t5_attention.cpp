#include <algorithm>
#include <cmath>
#include <tuple>

#include "holon/models/t5.h"

namespace holon::models {

std::vector<int64_t> relative_buckets(int64_t length, bool both, int64_t buckets, int64_t max_distance,
                                      int64_t before) {
  const int64_t own = both ? buckets / 2 : buckets;  // of one direction
  const int64_t exact = own / 2;                     // distances that have a bucket each
  std::vector<int64_t> out;
  for (int64_t query = before; query < length; ++query)
    for (int64_t key = 0; key < length; ++key) {
      const int64_t distance = both ? std::abs(key - query) : std::max<int64_t>(query - key, 0);
      int64_t bucket = distance;
      if (distance >= exact) {
        // In float, as torch has it, since a distance may be at the border of two buckets.
        const float share = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
            static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
        bucket = std::min(exact + static_cast<int64_t>(share * static_cast<float>(own - exact)), own - 1);
      }
      out.push_back(bucket + (both && key > query ? own : 0));
    }
  return out;
}

T5Attention::T5Attention(const T5Config& c, const Layout& l)
    : q(register_module("q", nn::Linear(c.d_model, c.num_heads * c.d_kv, by_outputs(l, false)))),
      k(register_module("k", nn::Linear(c.d_model, c.num_heads * c.d_kv, by_outputs(l, false)))),
      v(register_module("v", nn::Linear(c.d_model, c.num_heads * c.d_kv, by_outputs(l, false)))),
      o(register_module("o", nn::Linear(c.num_heads * c.d_kv, c.d_model, by_inputs(l, false)))),
      heads_(c.num_heads),
      dropout_(c.dropout_rate),
      layout_(l) {
  check_divides("T5", "attention heads", heads_, l);
}

AttendOptions T5Attention::options(const Tensor& bias) const {
  return {.scale = 1, .dropout = is_training() ? dropout_ : 0, .bias = bias};
}

Tensor T5Attention::forward(const Tensor& x, const Sequence& s, const Tensor& bias) const {
  const Tensor y =
      attend(split_heads(q(x), heads_), split_heads(k(x), heads_), split_heads(v(x), heads_), s, options(bias));
  return added_up(o(y), layout_);
}

Tensor T5Attention::over(const Tensor& states, const Tensor& x, const Sequence& s) const {
  Tensor key, value;
  if (s.cache) std::tie(key, value) = s.cache->source(s.layer);
  if (!key.defined()) {
    key = split_heads(k(states), heads_), value = split_heads(v(states), heads_);
    if (s.cache) s.cache->keep_source(s.layer, key, value);
  }
  Sequence as_is = s;
  as_is.cache = nullptr;  // nothing is added to the encoder's tokens
  return added_up(o(attend(split_heads(q(x), heads_), key, value, as_is, options({}))), layout_);
}

}  // namespace holon::models
