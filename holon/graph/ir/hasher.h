// A running 64-bit hash of words; alike on every rank if the words are.
#pragma once

#include <cstdint>
#include <string_view>

namespace holon::graph {

class Hasher {
 public:
  void add(uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15ull;
    value_ ^= value_ >> 29;
  }
  void add_text(std::string_view text) {
    add(text.size());
    for (char c : text) add(static_cast<unsigned char>(c));
  }
  uint64_t value() const {
    uint64_t v = value_ * 0xbf58476d1ce4e5b9ull;
    return v ^ v >> 32;
  }

 private:
  uint64_t value_ = 0x243f6a8885a308d3ull;
};

}  // namespace holon::graph
