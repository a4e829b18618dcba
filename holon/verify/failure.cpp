#include "holon/verify/failure.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "holon/base/fmt.h"
#include "holon/verify/align.h"

namespace holon::verify {

Divergence divergence_of(const std::vector<const Recording*>& ranks) {
  size_t least = ranks[0]->records.size();
  for (auto* r : ranks) least = std::min(least, r->records.size());
  auto same = [&](size_t at) {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](auto* r) { return key_of(r->records[at]) == key_of(ranks[0]->records[at]); });
  };
  size_t i = 0;
  while (i < least && same(i)) ++i;
  Divergence d{i < least, {}};
  for (auto* r : ranks) d.sites.push_back(i < r->records.size() ? r->records[i].site : "");
  return d;
}

namespace {

// "train.py:31: ValueError: ..." -> "train.py:31".
std::string site_of(const std::string& error) {
  const size_t end = error.find(": ");
  return end == std::string::npos ? "" : error.substr(0, end);
}

int line_of(const std::string& site) {
  const size_t colon = site.rfind(':');
  int n = 0;
  if (colon != std::string::npos) std::from_chars(site.data() + colon + 1, site.data() + site.size(), n);
  return n;
}

}  // namespace

Fault failure_of(const std::vector<const Recording*>& ranks) {
  Fault f;
  f.kind = FaultKind::kFails;
  f.op = "the program";
  const Divergence divergence = divergence_of(ranks);
  std::set<std::string> sites;
  std::string stopped;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Recording& rank = *ranks[r];
    const bool known = divergence.diverged && !divergence.sites[r].empty();
    if (std::string site = known ? divergence.sites[r] : site_of(rank.error); !site.empty()) sites.insert(site);
    // Of ranks that wait for each other the error of any tells what all of them do.
    if (f.what.empty()) f.what = rank.error;
    if (!rank.ended && rank.error.empty())
      stopped += fmt::format(
          "{}rank {} did not come to its end; the last that it did was at {}", stopped.empty() ? "" : "; ", r,
          rank.records.empty() || rank.records.back().site.empty() ? "its start" : rank.records.back().site);
  }
  if (f.what.empty()) f.what = stopped;
  if (sites.empty()) return f;
  f.site = *std::min_element(sites.begin(), sites.end(), [](auto& a, auto& b) { return line_of(a) < line_of(b); });
  if (sites.size() < 2) return f;
  std::string all;
  for (auto& s : sites) all += (all.empty() ? "" : " and ") + s;
  f.kind = FaultKind::kRankBranch;
  f.op = "the ranks";
  f.what = fmt::format("some continue at {}; {}", all, f.what);
  return f;
}

}  // namespace holon::verify
