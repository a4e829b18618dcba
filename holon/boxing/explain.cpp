// Plans in words.
#include "holon/boxing/explain.h"

#include <algorithm>
#include <functional>
#include <map>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"

namespace holon::boxing {

namespace {

// Links and ranks are named one by one up to here, and then told in sums.
constexpr size_t kNamed = 12;
// In larger placements it takes too long to find out who reads of whom.
constexpr size_t kLinked = 512;

std::string time_text(double s) {
  return s < 1e-3 ? fmt::format("{:.3g} us", s * 1e6)
      : s < 1     ? fmt::format("{:.3g} ms", s * 1e3)
                  : fmt::format("{:.3g} s", s);
}

std::string read_text(const Step& s) {
  auto [low, high] = std::minmax_element(s.read_bytes.begin(), s.read_bytes.end());
  if (*high == 0) return "reads nothing from other ranks";
  if (*low == *high) return fmt::format("reads {} bytes per rank", *high);
  if (s.read_bytes.size() > kNamed) return fmt::format("reads {} to {} bytes per rank", *low, *high);
  std::string text = "reads";
  for (size_t r = 0; r < s.read_bytes.size(); ++r)
    text += fmt::format("{} {} bytes on rank {}", r ? "," : "", s.read_bytes[r], s.to->placement.ranks()[r]);
  return text;
}

}  // namespace

std::string links_text(const std::vector<Link>& links) {
  if (links.empty()) return "none";
  std::map<int64_t, std::vector<const Link*>, std::greater<>> by_bytes;
  int64_t total = 0;
  for (auto& link : links) by_bytes[link.bytes].push_back(&link), total += link.bytes;
  if (links.size() > kNamed) {
    std::string each = by_bytes.size() == 1
        ? fmt::format("{} bytes each", links[0].bytes)
        : fmt::format("{} to {} bytes", by_bytes.rbegin()->first, by_bytes.begin()->first);
    return fmt::format("{} of {}, {} bytes in all", links.size(), each, total);
  }
  std::string text;
  for (auto& [bytes, same] : by_bytes) {
    if (!text.empty()) text += "; ";
    for (auto* link : same) text += fmt::format("{}{}->{}", link == same[0] ? "" : ", ", link->from, link->to);
    text += fmt::format(": {} bytes", bytes);
  }
  return text;
}

std::string Plan::str() const {
  std::string text = fmt::format("{} -> {}, {} {}: ", *from(), *to(), holon::name(dtype()), shape());
  if (steps().empty()) return text + "nothing to do";
  text += fmt::format("{} {}, at most {} bytes per rank, {}", steps().size(), steps().size() == 1 ? "step" : "steps",
                      max_read_bytes(), time_text(predicted_s()));
  const size_t ranks = to_size(from()->placement.size() + to()->placement.size());
  const bool linked = ranks <= kLinked;
  for (size_t i = 0; i < steps().size(); ++i) {
    auto& s = steps()[i];
    text += fmt::format("\n  {}. {}", i + 1, s.label);
    if (s.from->placement != s.to->placement) text += fmt::format(" to {}", s.to->placement);
    text += fmt::format(": {}, {}", read_text(s), time_text(s.predicted_s));
    if (s.two_phase) text += ", in two phases";
    if (s.host_bytes) text += fmt::format(", {} bytes into a host from other hosts", s.host_bytes);
  }
  if (max_read_bytes() > 0 && linked) {
    auto all = links();
    text += fmt::format("\n  links: {}", links_text(all));
    std::map<std::pair<int, int>, Link> between;
    for (auto& link : all) {
      int a = hosts().host(link.from), b = hosts().host(link.to);
      if (a == b) continue;
      auto& sum = between.try_emplace({a, b}, Link{a, b}).first->second;
      sum.messages += link.messages;
      sum.bytes += link.bytes;
    }
    std::vector<Link> list;
    for (auto& [key, link] : between) list.push_back(link);
    if (!list.empty()) text += fmt::format("\n  read across hosts, before sharing within a host: {}", links_text(list));
  }
  text += fmt::format("\n  memory: at most {} bytes besides the input", peak_bytes());
  return text;
}

Explanation explanation(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  // One rank alone may ask, so nobody is waited for.
  bool final = true;
  const Machine* m = machine_so_far(&final);
  Plan p = final ? plan(from, to, shape, dtype) : find_plan(from, to, shape, dtype, *m);
  std::string text = p.str();
  if (!final) text += "\n  with built-in costs: the ranks have not communicated yet, and may plan with measured ones";
  return {std::move(p), std::move(text)};
}

std::string explain(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  return explanation(from, to, shape, dtype).text;
}

}  // namespace holon::boxing
