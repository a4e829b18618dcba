#include "holon/contract/compilation.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::contract {

namespace {

struct Current {
  Compilation* compilation = nullptr;
};

constexpr const char* kCompared = "compared";

MoveKey key_of(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  return {nullptr, from, to, shape, dtype, 0};
}
MoveKey key_of(const Entry& e) { return key_of(e.from, e.to, e.shape, e.dtype); }

// Not several tensors at once, which no plan is made for.
bool is_single(const Entry& e) {
  return e.kind == Entry::Kind::kMove && std::find(e.kinds.begin(), e.kinds.end(), "batch") == e.kinds.end();
}

}  // namespace

Compilation* Compilation::current() { return Context::current().part<Current>().compilation; }

Compilation::Compilation(std::string name)
    : watch_(*current_watch()),
      had_(watch_.frozen_graph(name)),
      now_{Section::Kind::kGraph, std::move(name), 1, {}},
      before_(std::exchange(Context::current().part<Current>().compilation, this)),
      source_before_(boxing::exchange_plan_source(this)) {
  // Choices that were made outside are not repeated otherwise.
  tell_listeners();
  if (!had_) return;
  for (const Lines& l : had_->lines)
    for (const Entry& e : l.entries)
      if (is_single(e)) add_path(e, l.site.where());
  for (const Entry& e : had_->paths) add_path(e, "paths of " + had_->title());
  for (size_t i = had_->layouts.size(); i-- > 0;) at_[had_->layouts[i].call] = {i, 0};
}

Compilation::~Compilation() {
  Context::current().part<Current>().compilation = before_;
  boxing::exchange_plan_source(source_before_);
  tell_listeners();
}

void Compilation::add_path(const Entry& e, const std::string& where) {
  paths_.try_emplace(key_of(e), Path{&e, where, std::nullopt});
}

std::optional<std::string_view> Compilation::next(const std::string& call) {
  auto found = at_.find(call);
  if (found == at_.end()) return std::nullopt;
  auto& [at, taken] = found->second;
  const auto& all = had_->layouts;
  if (taken == all[at].times) {
    taken = 0;
    do ++at;
    while (at < all.size() && all[at].call != call);
  }
  if (at >= all.size()) {
    at_.erase(found);
    return std::nullopt;
  }
  ++taken;
  return all[at].taken;
}

void Compilation::note(const std::string& call, const std::string& taken) {
  if (had_) return;
  auto [last, fresh] = last_.try_emplace(call, 0);
  if (!fresh && now_.layouts[last->second].taken == taken) {
    ++now_.layouts[last->second].times;
    return;
  }
  last->second = now_.layouts.size();
  now_.layouts.push_back({call, taken, 1});
}

std::optional<boxing::Plan> Compilation::find(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                              DType dtype) {
  auto found = paths_.find(key_of(from, to, shape, dtype));
  if (found == paths_.end()) return std::nullopt;
  Path& path = found->second;
  if (!path.plan) path.plan = plan_of(*path.entry, watch_.file(), path.where);
  return path.plan;
}

void Compilation::planned(const boxing::Plan& plan) {
  if (had_ || searches_ > 0) return;
  auto [at, fresh] = asked_.try_emplace(key_of(plan.from(), plan.to(), plan.shape(), plan.dtype()), now_.paths.size());
  if (!fresh) return;
  Entry e = entry_of(kCompared, plan);
  e.least = e.most = 1;
  e.links.clear();
  now_.paths.push_back(std::move(e));
}

void Compilation::end(const std::vector<std::pair<Site, Entry>>& entries) {
  for (auto& [site, e] : entries) now_.add(site, e);
  // A line names its path itself.
  for (const Lines& l : now_.lines)
    for (const Entry& e : l.entries)
      if (is_single(e))
        std::erase_if(now_.paths, [&](const Entry& p) { return key_of(p) == key_of(e) && p.path == e.path; });
  watch_.graph(now_);
}

}  // namespace holon::contract
