// Plans in words.
#include <algorithm>

#include "holon/base/error.h"
#include "holon/boxing/planner.h"

namespace holon::boxing {

std::string Plan::str() const {
  std::string text = fmt::format("{} -> {}, {} {}: ", *from(), *to(), holon::name(dtype()), shape());
  if (steps().empty()) return text + "nothing to do";
  text += fmt::format("{} {}, at most {} bytes per rank, {:.3g} us", steps().size(),
                      steps().size() == 1 ? "step" : "steps", max_read_bytes(), predicted_s() * 1e6);
  for (size_t i = 0; i < steps().size(); ++i) {
    auto& s = steps()[i];
    text += fmt::format("\n  {}. {}", i + 1, s.label);
    if (s.from->placement != s.to->placement) text += fmt::format(" to {}", s.to->placement);
    text += ": reads";
    auto [low, high] = std::minmax_element(s.read_bytes.begin(), s.read_bytes.end());
    if (*high == 0)
      text += " nothing from other ranks";
    else if (*low == *high)
      text += fmt::format(" {} bytes per rank", *high);
    else
      for (size_t r = 0; r < s.read_bytes.size(); ++r)
        text += fmt::format("{} {} bytes on rank {}", r ? "," : "", s.read_bytes[r], s.to->placement.ranks()[r]);
    text += fmt::format(", {:.3g} us", s.predicted_s * 1e6);
  }
  return text;
}

std::string explain(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  return plan(from, to, shape, dtype).str();
}

}  // namespace holon::boxing
