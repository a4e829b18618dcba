#include "holon/contract/cost.h"

#include <algorithm>
#include <map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/contract/deviation.h"

namespace holon::contract {

namespace {

std::string time_text(double s) {
  return s < 1e-3 ? fmt::format("{:.1f} us", s * 1e6)
      : s < 1     ? fmt::format("{:.2f} ms", s * 1e3)
                  : fmt::format("{:.3g} s", s);
}

std::string bytes_text(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  return b < 1024   ? fmt::format("{} B", bytes)
      : b < 1 << 20 ? fmt::format("{:.1f} KiB", b / 1024)
      : b < 1 << 30 ? fmt::format("{:.1f} MiB", b / (1 << 20))
                    : fmt::format("{:.2f} GiB", b / (1 << 30));
}

struct Priced {
  const Site* site;
  const Entry* entry;
  double s;
};

// By line and key, over all sections: how the two differ is told of a line once.
using Table = std::map<std::string, std::pair<Site, Entry>>;

Table table_of(const Section* s) {
  Table t;
  if (s)
    for (const Lines& l : s->lines)
      for (const Entry& e : l.entries) t.emplace(l.site.str() + "\n" + e.key(), std::pair(l.site, e));
  return t;
}

std::string change_text(const Entry& e, int64_t times, char sign) {
  return fmt::format("  {} x{} {}: {}, {}, {}, {} in all", sign, times, e.what,
                     e.kind == Entry::Kind::kChoice ? "" : e.change(), e.kind == Entry::Kind::kChoice ? "" : e.tensor(),
                     e.kind == Entry::Kind::kMove ? e.path_text() : "", bytes_text(e.all_bytes * times));
}

}  // namespace

HostMap spread_over(int ranks, int hosts) {
  if (hosts < 1 || hosts > ranks)
    fail_value("{} hosts for {} ranks: there is at least one rank on each.", hosts, ranks);
  HostMap map;
  if (hosts > 1)
    for (int r = 0; r < ranks; ++r) map.host_of_rank.push_back(static_cast<int>(int64_t{r} * hosts / ranks));
  return map;
}

std::string cost_text(const Document& document, const Machine& machine) {
  Context world(0, document.ranks, 0, document.ranks);
  const ContextGuard in_world(world);
  std::string text;
  for (const Section& s : document.sections) {
    std::vector<Priced> all;
    double total = 0;
    int64_t bytes = 0;
    for (const Lines& l : s.lines)
      for (const Entry& e : l.entries) {
        // Several tensors that travel together are priced as one.
        const double each = seconds(e, machine);
        all.push_back({&l.site, &e, each * static_cast<double>(e.most)});
        total += all.back().s;
        bytes += e.all_bytes * e.most;
      }
    std::stable_sort(all.begin(), all.end(), [](const Priced& a, const Priced& b) { return a.s > b.s; });
    text += fmt::format("{}== {}: {} and {} read by all ranks\n", text.empty() ? "" : "\n", s.title(), time_text(total),
                        bytes_text(bytes));
    for (const Priced& p : all) {
      const Entry& e = *p.entry;
      if (e.most_bytes == 0) continue;
      text += fmt::format("{:>10}  {:>10}  {}\n{:24}x{} {}: {}, {}, {}\n", time_text(p.s),
                          bytes_text(e.all_bytes * e.most), p.site->where(), "", e.most, e.what, e.change(), e.tensor(),
                          e.kind == Entry::Kind::kMove ? e.path_text() : "agree");
      if (e.kind != Entry::Kind::kMove || (!e.kinds.empty() && e.kinds[0] == "batch")) continue;
      const boxing::Plan here = boxing::find_plan(e.from, e.to, e.shape, e.dtype, machine);
      if (boxing::path_of(here) == e.path) continue;
      text += fmt::format("{:24}the planner would take another path here: {}, {} each time instead of {}\n", "",
                          entry_of("", here).path_text(), time_text(here.predicted_s()),
                          time_text(p.s / static_cast<double>(e.most)));
    }
  }
  return text;
}

std::string diff_text(const Document& a, const Document& b) {
  std::string text;
  if (a.ranks != b.ranks || a.hosts != b.hosts)
    text += fmt::format("ranks {}, hosts {} -> ranks {}, hosts {}\n", a.ranks, a.hosts, b.ranks, b.hosts);
  std::vector<const Section*> order;
  for (const Section& s : a.sections) order.push_back(&s);
  for (const Section& s : b.sections)
    if (!a.section(s.kind, s.name)) order.push_back(&s);
  for (const Section* s : order) {
    const Section *was = a.section(s->kind, s->name), *is = b.section(s->kind, s->name);
    const Table before = table_of(was), after = table_of(is);
    std::map<std::string, std::string> by_site;
    std::vector<std::string> sites;
    auto say = [&](const Site& site, const std::string& line) {
      const std::string where = site.where();
      if (!by_site.contains(where)) sites.push_back(where);
      by_site[where] += line + "\n";
    };
    int64_t less = 0, more = 0;
    for (auto& [key, x] : before) {
      auto& [site, e] = x;
      auto now = after.find(key);
      if (now != after.end() && now->second.second.most == e.most && now->second.second.least == e.least &&
          now->second.second.all_bytes == e.all_bytes)
        continue;
      less += e.all_bytes * e.most;
      say(site, change_text(e, e.most, '-'));
    }
    for (auto& [key, x] : after) {
      auto& [site, e] = x;
      auto old = before.find(key);
      if (old != before.end() && old->second.second.most == e.most && old->second.second.least == e.least &&
          old->second.second.all_bytes == e.all_bytes)
        continue;
      more += e.all_bytes * e.most;
      std::string line = change_text(e, e.most, '+');
      // Most like it among what went from the line.
      std::vector<Entry> gone;
      for (auto& [k, y] : before)
        if (y.first == site && !after.contains(k)) gone.push_back(y.second);
      const Entry* like = old != before.end() ? &old->second.second : most_like(gone, e);
      if (like && e.kind == Entry::Kind::kMove && old == before.end()) line += fmt::format("\n    {}", why(*like, e));
      say(site, line);
    }
    if (sites.empty()) continue;
    text += fmt::format("== {}: {}{} read by all ranks\n", s->title(), more >= less ? "+" : "-",
                        bytes_text(more >= less ? more - less : less - more));
    for (auto& site : sites) text += site + "\n" + by_site[site];
  }
  return text;
}

}  // namespace holon::contract
