#include "holon/graph/agreement.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/comm/core/communicator.h"

namespace holon::graph {

namespace {

constexpr size_t kTextBytes = 600;

bool alone(const std::vector<int>& ranks) {
  return ranks.size() < 2 || std::find(ranks.begin(), ranks.end(), Context::current().rank()) == ranks.end();
}

std::vector<uint64_t> gather(comm::Communicator& c, const char* what, uint64_t mine) {
  std::vector<uint64_t> all(to_size(c.size()));
  c.all_gather_bytes({.op = what, .dtype = DType::kInt64, .shape = {1}}, &mine, sizeof mine, all.data());
  return all;
}

bool alike(const std::vector<uint64_t>& values) {
  return std::all_of(values.begin(), values.end(), [&](uint64_t v) { return v == values[0]; });
}

// The first place at which lists of the ranks differ; the length of the shortest where it is the beginning of all.
size_t first_difference(comm::Communicator& c, const std::vector<uint64_t>& mine) {
  std::vector<uint64_t> sizes = gather(c, "graph's length", mine.size());
  std::vector<int64_t> counts(sizes.begin(), sizes.end());
  int64_t total = 0;
  for (int64_t n : counts) total += n;
  std::vector<uint64_t> all(to_size(total));
  c.all_gather(mine.data(), all.data(), counts, DType::kInt64);
  const int64_t shortest = *std::min_element(counts.begin(), counts.end());
  for (int64_t i = 0; i < shortest; ++i) {
    int64_t at = 0;
    for (int64_t n : counts) {
      if (at_index(all, at + i) != at_index(all, i)) return to_size(i);
      at += n;
    }
  }
  return to_size(shortest);
}

// What each rank says, with the ranks that say the same.
std::string everyones(comm::Communicator& c, std::string mine) {
  if (mine.size() > kTextBytes) mine.replace(kTextBytes - 3, std::string::npos, "...");
  mine.resize(kTextBytes, '\0');
  std::string all(kTextBytes * to_size(c.size()), '\0');
  c.all_gather_bytes({.op = "graph's text"}, mine.data(), kTextBytes, all.data());
  std::vector<std::pair<std::string, std::string>> said;  // what, by which ranks
  for (int r = 0; r < c.size(); ++r) {
    std::string text = all.c_str() + kTextBytes * to_size(r);
    const std::string who = std::to_string(at_index(c.ranks(), r));
    auto it = std::find_if(said.begin(), said.end(), [&](auto& s) { return s.first == text; });
    if (it == said.end())
      said.emplace_back(text, "rank " + who);
    else
      it->second += ", " + who;
  }
  std::string s;
  for (auto& [text, who] : said) s += fmt::format("\n  on {}: {}", who, text);
  return s;
}

std::string place_of(const Graph& g, const Node& n) {
  const std::string &scope = at_index(g.scopes, n.scope), &site = at_index(g.sites, n.site);
  return scope.empty() && site.empty()
      ? ""
      : fmt::format("  [{}{}{}]", scope, scope.empty() || site.empty() ? "" : ", ", site);
}

std::string compilation_text(const Graph& g, const std::vector<int8_t>& variant_of, const CompileOptions& options) {
  std::string s =
      fmt::format("{} inputs, {} outputs, {} parameters and constants, {}{}", g.n_inputs(), g.n_outputs(),
                  g.externals.size(), agreed_text(options), variant_of.empty() ? "" : ", variants of micro-batches");
  for (int8_t f : variant_of) s += fmt::format(" {}", f);
  return s;
}

[[noreturn]] void fail_schedules_differ(comm::Communicator& c, const Schedule& s) {
  std::vector<uint64_t> words{hash_text(s.name)};
  std::vector<std::string> of{s.name};
  for (size_t d = 0; d < s.tasks.size(); ++d)
    for (size_t i = 0; i <= s.tasks[d].size(); ++i) {
      const bool end = i == s.tasks[d].size();
      of.push_back(fmt::format("{}, task {} of device {}: {}", s.name, i, d, end ? "none" : s.tasks[d][i].str()));
      words.push_back(hash_text(of.back()));
    }
  const size_t at = first_difference(c, words);
  fail_runtime("the ranks order the tasks of a graph differently. The first difference:{}\nThe function of a schedule "
               "must return the same lists on every rank: it may not depend on the rank.",
               everyones(c, at < of.size() ? of[at] : "no such device"));
}

// How often a rank has compiled each graph.
struct Compiled {
  std::unordered_map<uint64_t, uint64_t> times;
};

}  // namespace

std::vector<int> ranks_of(const Graph& g) {
  std::set<int> ranks;
  std::unordered_set<const void*> seen;
  for (auto& v : g.values)
    if (v.spec && seen.insert(v.spec->placement.id()).second)
      for (int r : v.spec->placement.ranks()) ranks.insert(r);
  return {ranks.begin(), ranks.end()};
}

uint64_t check_captures_agree(const std::vector<int>& ranks, const std::vector<Graph>& variants,
                              const std::vector<int8_t>& variant_of, const CompileOptions& options) {
  if (alone(ranks)) return 0;
  comm::Communicator& c = comm::communicator(ranks);
  const Graph& g = variants[0];
  const std::string text = compilation_text(g, variant_of, options);
  Hasher captures;
  for (auto& variant : variants) captures.add(hash(variant));
  const uint64_t mine_hash = (variants.size() == 1 ? hash(g) : captures.value()) ^ hash_text(text);
  if (alike(gather(c, "compilation of a graph", mine_hash))) {
    Hasher h;
    h.add(mine_hash);
    h.add(++Context::current().part<Compiled>().times[mine_hash]);
    return h.value() | 1;
  }
  const char* way_out = "Every rank must run the same build() with the same config: neither may depend on the rank.";
  std::vector<uint64_t> nodes;
  std::vector<std::pair<const Graph*, const Node*>> of;
  for (auto& variant : variants) {
    for (uint64_t h : node_hashes(variant)) nodes.push_back(h);
    for (auto& n : variant.nodes) of.emplace_back(&variant, &n);
  }
  Hasher all;
  for (uint64_t n : nodes) all.add(n);
  if (!alike(gather(c, "a graph's nodes", all.value()))) {
    const size_t at = first_difference(c, nodes);
    const std::string mine =
        at < of.size() ? str(*of[at].first, *of[at].second) + place_of(*of[at].first, *of[at].second) : "nothing more";
    fail_runtime("the ranks have captured different graphs. The first difference is node {}:{}\n{}", at,
                 everyones(c, mine), way_out);
  }
  fail_runtime("the ranks compile a graph differently:{}\n{}", everyones(c, text), way_out);
}

void check_plans_agree(const std::vector<int>& ranks, const Graph& g, const Schedule& schedule) {
  if (alone(ranks)) return;
  comm::Communicator& c = comm::communicator(ranks);
  if (alike(gather(c, "the plan of a graph", hash_words(hash(g), hash(schedule))))) return;
  if (alike(gather(c, "the nodes of a graph's plan", hash(g)))) fail_schedules_differ(c, schedule);
  const size_t at = first_difference(c, node_hashes(g));
  const std::string mine = at < g.nodes.size() ? str(g, g.nodes[at]) + place_of(g, g.nodes[at]) : "nothing more";
  fail_runtime("the ranks have compiled one graph to different plans. The first difference is node {}:{}\nSet "
               "HOLON_MACHINE_COSTS=fixed on "
               "all ranks, or report this.",
               at, everyones(c, mine));
}

}  // namespace holon::graph
