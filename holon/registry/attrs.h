// The attribute values of one call, in the order of the op's schema, as flat words: cheap to build, hash and compare.
#pragma once

#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "holon/array/device.h"
#include "holon/array/dims.h"
#include "holon/array/scalar.h"
#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/global/nd_sbp.h"
#include "holon/global/placement.h"

namespace holon {

static_assert(std::is_trivially_copyable_v<Placement> && sizeof(Placement) == 8);
static_assert(std::is_trivially_copyable_v<NdSbp> && sizeof(NdSbp) == 8);

// A text that lives for ever at one address, so that equal texts are equal pointers.
const char* intern_text(std::string_view text);

class Attrs {
 public:
  void push_none() { start_.push_back(kNone); }
  void push_int(int64_t v) { push_word(v); }
  void push_bool(bool v) { push_word(v); }
  void push_float(double v) { push_word(std::bit_cast<int64_t>(v)); }
  void push_scalar(const Scalar& v) {
    push_word(static_cast<int64_t>(v.kind()));
    words_.push_back(v.is_float() ? std::bit_cast<int64_t>(v.as_double()) : v.as_int());
  }
  void push_dtype(DType v) { push_word(static_cast<int64_t>(v)); }
  void push_text(std::string_view v) { push_word(reinterpret_cast<int64_t>(intern_text(v))); }
  void push_device(Device d) {
    push_word(static_cast<int64_t>(d.type) | d.simulated << 8 | static_cast<int64_t>(d.index) << 16);
  }
  void push_placement(Placement p) { push_word(std::bit_cast<int64_t>(p)); }
  void push_nd_sbp(NdSbp s) { push_word(std::bit_cast<int64_t>(s)); }
  void push_ints(std::span<const int64_t> v) {
    push_word(static_cast<int64_t>(v.size()));
    for (int64_t x : v) words_.push_back(x);
  }

  // Attribute i of another list, None included.
  void push_from(const Attrs& other, int i) {
    if (!other.has(i)) return push_none();
    size_t begin = other.start_[i], end = other.words_.size();
    for (uint16_t s : other.start_)
      if (s != kNone && s > begin && s < end) end = s;
    start_.push_back(static_cast<uint16_t>(words_.size()));
    for (size_t w = begin; w < end; ++w) words_.push_back(other.words_[w]);
  }

  size_t size() const { return start_.size(); }
  bool has(int i) const { return start_[i] != kNone; }
  int64_t as_int(int i) const { return word(i); }
  bool as_bool(int i) const { return word(i) != 0; }
  double as_float(int i) const { return std::bit_cast<double>(word(i)); }
  Scalar as_scalar(int i) const {
    int64_t bits = words_[start_[i] + 1];
    switch (static_cast<Scalar::Kind>(word(i))) {
      case Scalar::Kind::kBool: return Scalar(bits != 0);
      case Scalar::Kind::kInt: return Scalar(bits);
      default: return Scalar(std::bit_cast<double>(bits));
    }
  }
  DType as_dtype(int i) const { return static_cast<DType>(word(i)); }
  const char* as_text(int i) const { return reinterpret_cast<const char*>(word(i)); }
  Device as_device(int i) const {
    int64_t w = word(i);
    return {static_cast<DeviceType>(w & 0xff), static_cast<int16_t>(w >> 16), (w >> 8 & 1) != 0};
  }
  Placement as_placement(int i) const { return std::bit_cast<Placement>(word(i)); }
  NdSbp as_nd_sbp(int i) const { return std::bit_cast<NdSbp>(word(i)); }
  std::span<const int64_t> as_ints(int i) const { return {words_.data() + start_[i] + 1, to_size(word(i))}; }
  // Gives an int attribute a value, also one that was None.
  void set_int(int i, int64_t v) {
    if (!has(i)) {
      start_[i] = static_cast<uint16_t>(words_.size());
      words_.push_back(v);
    } else {
      words_[start_[i]] = v;
    }
  }

  std::span<const int64_t> words() const { return words_; }
  std::span<const uint16_t> starts() const { return start_; }

 private:
  static constexpr uint16_t kNone = 0xffff;
  int64_t word(int i) const { return words_[start_[i]]; }
  void push_word(int64_t w) {
    start_.push_back(static_cast<uint16_t>(words_.size()));
    words_.push_back(w);
  }

  SmallVec<uint16_t, 12> start_;
  SmallVec<int64_t, 20> words_;
};

}  // namespace holon
