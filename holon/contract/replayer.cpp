// Holds a program to its contract: serves the plans, and counts what each line moves, step by step.
#include <algorithm>
#include <list>
#include <map>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/contract/deviation.h"
#include "holon/contract/watch.h"
#include "holon/cost/machine.h"

namespace holon::contract {

namespace {

class Replayer final : public Watch {
 public:
  explicit Replayer(const std::string& file) : file_(file), document_(read_document(file)) {
    const int world = Context::current().world_size();
    if (document_.ranks != world)
      fail_value("contract {}: it is of {} ranks, and this world has {}. Start as many, or record one for this world.",
                 file, document_.ranks, world);
    // What is not in the contract is decided by the figures that it was recorded with.
    before_ = *machine();
    set_machine({parse_costs(document_.machine, {}), before_.hosts});
    for (Section& s : document_.sections) {
      if (s.kind == Section::Kind::kGraph) continue;
      sections_.push_back(&s);
      for (Lines& l : s.lines)
        for (Entry& e : l.entries) {
          add(s, l, e);
          if (e.what == in_backward("leaf", kGradientsTogether)) gradients_together_.push_back(&e);
        }
    }
  }

  boxing::Plan move(const Move& m, std::string_view node) override {
    const Site* site = current_site();
    auto [at, fresh] = by_key_.try_emplace(key_of(site, m, node));
    if (fresh) {
      at->second.item = find(*site, entry_for(m, node).key());
      at->second.plan = at->second.item ? planned(*at->second.item) : free_plan(*site, m, node);
    }
    Resolved found = at->second;
    if (found.item) count(*site, *found.item);
    return found.plan;
  }

  void local(const GlobalSpec* to, const Dims& shape, DType dtype, std::string_view node) override {
    const Site* site = current_site();
    auto [at, fresh] = by_key_.try_emplace(key_of(site, {"local", nullptr, to, shape, dtype}, node));
    if (!fresh && at->second.item) return count(*site, *at->second.item);
    const Entry asked = entry_of_local(in_backward(node, "to_global"), to, shape, dtype);
    at->second.item = find(*site, asked.key());
    count_or_refuse(*site, asked);
  }

  void choice(std::string_view op, std::string_view choice, std::string_view node) override {
    count_or_refuse(*current_site(), entry_of_choice(in_backward(node, op), choice));
  }

  void graph(const Section& now) override {
    if (stopped_) return;
    const Section* had = document_.section(Section::Kind::kGraph, now.name);
    for (const Lines& l : now.lines)
      for (const Entry& e : l.entries) {
        const Entry* same = had ? find_in(*had, l.site, e.key()) : nullptr;
        if (e.most_bytes == 0 || (same && same->most >= e.most)) continue;
        refuse({file_, &document_, had, l.site, &e, same, e.most});
      }
    if (!had) return;
    for (const Lines& l : had->lines)
      for (const Entry& e : l.entries) {
        if (e.most_bytes == 0) continue;
        int64_t times = 0;
        for (const Lines& mine : now.lines)
          for (const Entry& x : mine.entries)
            if (x.key() == e.key() && (mine.site == l.site || moved(mine.site, l.site))) times += x.most;
        if (times < e.least) refuse({file_, &document_, had, l.site, nullptr, &e, times});
      }
  }

  void end_step() override {
    const Site& site = *current_site();
    if (sections_.empty() || sections_[0]->name.empty()) return;  // it was recorded without steps
    const Section* s = step_ == 0 ? sections_[0] : step_section(site);
    if (s) check(*s);
    ++step_;
  }

  void close(bool, bool failed) override {
    if (&Context::current() == context_) set_machine(before_);
    if (failed || stopped_) return;
    if (step_ == 0 && !sections_.empty()) return check(*sections_[0]);
    for (const Section* s : sections_)
      if (s->kind == Section::Kind::kEnd) check(*s);
  }

  bool replays() const override { return true; }
  const Section* frozen_graph(const std::string& name) const override {
    return document_.section(Section::Kind::kGraph, name);
  }
  const std::string& file() const override { return file_; }

  std::span<const Entry* const> gradients_together() const override { return gradients_together_; }

  std::optional<boxing::Plan> plan_of(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                      DType dtype) override {
    for (auto& [key, item] : items_) {
      const Entry& e = *item.entry;
      if (e.kind == Entry::Kind::kMove && e.from == from && e.to == to && e.shape == shape && e.dtype == dtype)
        return planned(item);
    }
    return std::nullopt;
  }

  std::vector<std::vector<NdSbp>> frozen_inputs(std::string_view op, std::span<const OpInput> inputs,
                                                std::string_view node) override {
    std::vector<std::vector<NdSbp>> here, elsewhere;
    const Site& site = *current_site();
    auto of_op = by_op_.find(in_backward(node, op));
    if (of_op == by_op_.end()) return here;
    for (const Call& call : of_op->second) {
      if (!call.takes(inputs)) continue;
      auto& list = call.site == site || moved(site, call.site) ? here : elsewhere;
      if (std::find(list.begin(), list.end(), call.targets) == list.end()) list.push_back(call.targets);
    }
    return here.empty() ? elsewhere : here;
  }

  std::optional<std::string> frozen_choice(std::string_view op, std::string_view node) override {
    const std::string begins = in_backward(node, op) + " takes ";
    const Site& site = *current_site();
    for (auto& [key, item] : items_)
      if (item.entry->kind == Entry::Kind::kChoice && item.site == site && item.entry->what.starts_with(begins))
        return item.entry->what.substr(begins.size());
    return std::nullopt;
  }

 private:
  // An entry of a line, of all sections.
  struct Item {
    Site site;
    const Entry* entry = nullptr;  // of the first section that has it
    std::map<const Section*, const Entry*> in;
    std::optional<boxing::Plan> plan;
    const Site* taken_by = nullptr;  // the line that its own has become
    int64_t step = -1, times = 0;    // how often in which step
  };
  // What an op takes its inputs in on a line, and which inputs it redistributes for that.
  struct Call {
    Site site;
    std::vector<NdSbp> targets;
    std::vector<const Entry*> moved;
    bool takes(std::span<const OpInput> inputs) const {
      if (inputs.size() != targets.size()) return false;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const OpInput& in = inputs[i];
        if ((in.spec != nullptr) != static_cast<bool>(targets[i])) return false;
        if (!in.spec || in.spec->nd_sbp == targets[i]) continue;
        if (std::none_of(moved.begin(), moved.end(), [&](const Entry* e) {
              return e->from == in.spec && e->to->nd_sbp == targets[i] && e->shape == in.shape && e->dtype == in.dtype;
            }))
          return false;
      }
      return true;
    }
  };
  struct Resolved {
    Item* item = nullptr;  // nullptr: it moves no bytes, and is not in the contract
    boxing::Plan plan{nullptr};
  };

  void add(const Section& s, const Lines& l, const Entry& e) {
    auto [at, fresh] = items_.try_emplace(l.site.str() + "\n" + e.key());
    Item& item = at->second;
    if (fresh) {
      item.site = l.site;
      item.entry = &e;
      if (const std::string_view op = op_of(e); !op.empty()) add_call(by_op_[std::string(op)], l.site, e);
      by_entry_[e.key()].push_back(&item);
    }
    item.in[&s] = &e;
  }

  static void add_call(std::vector<Call>& calls, const Site& site, const Entry& e) {
    std::vector<NdSbp> targets = targets_of(e);
    auto at =
        std::find_if(calls.begin(), calls.end(), [&](const Call& c) { return c.site == site && c.targets == targets; });
    if (at == calls.end()) at = calls.insert(at, {site, std::move(targets), {}});
    at->moved.push_back(&e);
  }

  // The line was edited, or its function renamed: the recorded one is not in the program any more.
  static bool moved(const Site& now, const Site& recorded) {
    return now.file == recorded.file && !(now == recorded) && !still_there(now, recorded.text, recorded.function);
  }

  Item* find(const Site& site, const std::string& key) {
    if (auto at = items_.find(site.str() + "\n" + key); at != items_.end()) return &at->second;
    auto alike = by_entry_.find(key);
    if (alike == by_entry_.end()) return nullptr;
    for (Item* item : alike->second)
      if (moved(site, item->site) && (!item->taken_by || *item->taken_by == site)) {
        item->taken_by = &*taken_.insert(taken_.end(), site);
        return item;
      }
    return nullptr;
  }

  static const Entry* find_in(const Section& s, const Site& site, const std::string& key) {
    if (const Entry* e = s.find(site, key)) return e;
    for (const Lines& l : s.lines)
      if (moved(site, l.site))
        for (const Entry& e : l.entries)
          if (e.key() == key) return &e;
    return nullptr;
  }

  static Entry entry_for(const Move& m, std::string_view node) {
    Entry e;
    e.what = what_of(m, node);
    e.from = m.from;
    e.to = m.to;
    e.shape = m.shape;
    e.dtype = m.dtype;
    return e;
  }

  boxing::Plan planned(Item& item) const {
    if (item.plan) return *item.plan;
    item.plan = contract::plan_of(*item.entry, file_, item.site.where());
    return *item.plan;
  }

  // Of a move that the contract does not have. Errors: it reads bytes.
  boxing::Plan free_plan(const Site& site, const Move& m, std::string_view node) {
    boxing::Plan plan = boxing::plan(m.from, m.to, m.shape, m.dtype);
    if (plan.max_read_bytes() == 0 || stopped_) return plan;
    const Entry asked = entry_of(what_of(m, node), plan);
    by_key_.erase(key_of(current_site(), m, node));
    refuse({file_, &document_, current_section(), site, &asked, nullptr, 1});
  }

  void count_or_refuse(const Site& site, const Entry& asked) {
    if (Item* item = find(site, asked.key())) return count(site, *item);
    if ((asked.most_bytes > 0 || asked.kind == Entry::Kind::kChoice) && !stopped_)
      refuse({file_, &document_, current_section(), site, &asked, nullptr, 1});
  }

  void count(const Site& site, Item& item) {
    if (item.step != step_) item.step = step_, item.times = 0;
    ++item.times;
    if (item.times <= limit(item) || item.entry->most_bytes == 0 || stopped_) return;
    // The part of the program that allows most.
    const Section* section = nullptr;
    for (auto& [s, e] : item.in)
      if (is_possible(*s) && (!section || e->most > item.in.at(section)->most)) section = s;
    refuse({file_, &document_, section, site, item.entry, section ? item.in.at(section) : nullptr, item.times});
  }

  // Whether this step may be one of the section.
  bool is_possible(const Section& s) const {
    const bool first = s.kind == Section::Kind::kStart;
    return step_ == 0 ? first : !first || sections_.size() == 1;
  }
  const Section* current_section() const {
    for (const Section* s : sections_)
      if (is_possible(*s)) return s;
    return nullptr;
  }
  int64_t limit(const Item& item) const {
    int64_t most = 0;
    for (auto& [s, e] : item.in)
      if (is_possible(*s)) most = std::max(most, e->most);
    return most;
  }

  const Section* step_section(const Site& site) const {
    for (const Section* s : sections_)
      if (s->kind == Section::Kind::kStep && s->name == site.str()) return s;
    return nullptr;
  }

  // At the end of a step of the section: nothing is missing, and nothing is more often.
  void check(const Section& s) {
    if (stopped_) return;
    for (auto& [key, item] : items_) {
      const int64_t times = item.step == step_ ? item.times : 0;
      auto at = item.in.find(&s);
      if (item.entry->most_bytes == 0) continue;
      const Site& site = item.taken_by ? *item.taken_by : item.site;
      if (at == item.in.end() ? times > 0 : times > at->second->most)
        refuse({file_, &document_, &s, site, item.entry, at == item.in.end() ? nullptr : at->second, times});
      if (at != item.in.end() && times < at->second->least)
        refuse({file_, &document_, &s, site, nullptr, at->second, times});
    }
  }

  [[noreturn]] void refuse(const Deviation& d) {
    stopped_ = true;
    throw Error(ErrorKind::kRuntime, text_of(d));
  }

  const std::string file_;
  const Context* context_ = &Context::current();  // another one may be current when it is closed
  Document document_;
  Machine before_;
  std::vector<const Section*> sections_;
  int64_t step_ = 0;
  bool stopped_ = false;  // a deviation was raised: what follows is not looked at
  std::map<std::string, Item> items_;
  std::unordered_map<std::string, std::vector<Call>> by_op_;
  std::unordered_map<std::string, std::vector<Item*>> by_entry_;
  std::unordered_map<MoveKey, Resolved, MoveKeyHash> by_key_;
  std::vector<const Entry*> gradients_together_;
  std::list<Site> taken_;
};

}  // namespace

std::shared_ptr<Watch> make_replayer(const std::string& file) { return std::make_shared<Replayer>(file); }

}  // namespace holon::contract
