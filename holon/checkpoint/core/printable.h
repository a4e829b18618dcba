#pragma once

#include <string>
#include <string_view>

namespace holon::checkpoint {

// Text out of a damaged file as part of a message: what is not an ASCII character becomes '?', and the rest of long
// text is left out.
inline std::string printable(std::string_view text) {
  constexpr size_t kLongest = 300;
  std::string out(text.substr(0, kLongest));
  for (char& c : out)
    if (c < 0x20 || c > 0x7e) c = '?';
  return text.size() > kLongest ? out + "..." : out;
}

}  // namespace holon::checkpoint
