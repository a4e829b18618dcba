// 64-bit hashes of words, bytes and text, and the generator behind seeds.
//
// Hashes of the same words are the same on every rank of one build, so that ranks may compare them. They may change
// from one version to the next: never write one to a file. Numbers of splitmix64() do not change.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace holon {

constexpr uint64_t kGoldenRatio64 = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio, odd

template <class T>
concept HashWord = std::integral<T> || std::is_enum_v<T> || std::is_pointer_v<T>;

// One more word of a running hash. The high half of a product depends on all bits, so it is folded into the low half.
constexpr uint64_t hash_combine(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kGoldenRatio64;
  return hash ^ hash >> 32;
}

class Hasher {
 public:
  constexpr Hasher() = default;

  template <HashWord T>
  constexpr Hasher& add(T word) {
    if constexpr (std::is_pointer_v<T>)
      hash_ = hash_combine(hash_, reinterpret_cast<uintptr_t>(word));
    else
      hash_ = hash_combine(hash_, static_cast<uint64_t>(word));
    return *this;
  }
  Hasher& add_bytes(const void* data, size_t bytes) {
    add(bytes);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, static_cast<const char*>(data) + i, std::min(bytes - i, sizeof word));
      add(word);
    }
    return *this;
  }
  Hasher& add_text(std::string_view text) { return add_bytes(text.data(), text.size()); }

  constexpr uint64_t value() const {
    const uint64_t mixed = hash_ * 0xbf58476d1ce4e5b9ull;
    return mixed ^ mixed >> 32;
  }

 private:
  uint64_t hash_ = 0x243f6a8885a308d3ull;  // not 0, which zeros would leave as it is
};

template <HashWord... Words>
constexpr uint64_t hash_words(Words... words) {
  Hasher h;
  (h.add(words), ...);
  return h.value();
}
inline uint64_t hash_bytes(const void* data, size_t bytes) { return Hasher().add_bytes(data, bytes).value(); }
inline uint64_t hash_text(std::string_view text) { return hash_bytes(text.data(), text.size()); }

// The next number of a SplitMix64 sequence: a counter whose steps are mixed, the same on every machine.
constexpr uint64_t splitmix64(uint64_t& state) {
  uint64_t z = state += kGoldenRatio64;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace holon
