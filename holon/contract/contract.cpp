#include "holon/contract/contract.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/comm/core/communicator.h"
#include "holon/contract/moves.h"
#include "holon/contract/watch.h"

namespace holon::contract {

namespace {

std::vector<void (*)()>& listeners() {
  static std::vector<void (*)()> list;
  return list;
}

struct OfRank {
  std::shared_ptr<Watch> watch;
  const char* node = "";
  bool looked = false;  // whether the environment names a contract
  ~OfRank() {
    if (!watch) return;
    try {
      watch->close(false, false);
    } catch (const std::exception& e) {
      log::warn(e.what());
    }
  }
};

std::shared_ptr<Watch> make(const std::string& file, Mode mode) {
  return mode == Mode::kReplay ? make_replayer(file) : make_recorder(file);
}

void close_at_exit() {
  OfRank& mine = Context::of_process().part<OfRank>();
  if (!mine.watch) return;
  try {
    std::exchange(mine.watch, nullptr)->close(false, false);
  } catch (const std::exception& e) {
    // Nobody is left to catch it, and a program that has not kept its contract has not ended well.
    std::fprintf(stderr, "%s\n", e.what());
    std::fflush(nullptr);
    std::_Exit(1);
  }
}

void put(std::shared_ptr<Watch> watch) {
  Context::current().part<OfRank>().watch = std::move(watch);
  tell_listeners();
}

// The rank's own, with what the environment names. Threads that took the rank are not watched.
[[gnu::noinline]] void look_at_environment() {
  Context& context = Context::current();
  if (context.number() != 0 || (!context.ranks_are_threads() && &context != &Context::of_process())) return;
  const std::string record = settings::text("HOLON_CONTRACT_RECORD"), replay = settings::text("HOLON_CONTRACT");
  if (record.empty() && replay.empty()) return;
  if (!record.empty() && !replay.empty())
    fail_value("HOLON_CONTRACT and HOLON_CONTRACT_RECORD are both set. Set the one to replay or the one to record.");
  Guard(record.empty() ? replay : record, record.empty() ? Mode::kReplay : Mode::kRecord).keep();
}

OfRank& of_rank() {
  OfRank& mine = Context::current().part<OfRank>();
  if (!mine.looked) [[unlikely]] {
    mine.looked = true;
    look_at_environment();
    return Context::current().part<OfRank>();
  }
  return mine;
}

}  // namespace

Guard::Guard(const std::string& file, Mode mode)
    : watch_(make(file, mode)),
      before_(of_rank().watch),
      exceptions_(std::uncaught_exceptions()),
      together_(mode != Mode::kRecordAlone) {
  put(watch_);
}

Guard::~Guard() noexcept(false) { end(std::uncaught_exceptions() > exceptions_); }

void Guard::end(bool failed) {
  if (!watch_) return;
  put(std::move(before_));
  std::exchange(watch_, nullptr)->close(together_, failed);
}

void Guard::keep() {
  watch_ = nullptr;
  if (&Context::current() != &Context::of_process()) return;
  [[maybe_unused]] static const bool registered = std::atexit(close_at_exit) == 0;
}

void abandon() { Context::current().part<OfRank>().watch = nullptr; }

void set_line(const char* text) { comm::set_call_site(text); }

void end_step() {
  if (auto& watch = of_rank().watch) watch->end_step();
}

bool is_replaying() {
  auto& watch = of_rank().watch;
  return watch && watch->replays();
}
bool is_watching() { return of_rank().watch != nullptr; }

boxing::Plan plan_move(const Move& m) {
  OfRank& mine = of_rank();
  if (!mine.watch) [[likely]]
    return boxing::plan(m.from, m.to, m.shape, m.dtype);
  return mine.watch->move(m, mine.node);
}

void note_local(const GlobalSpec* to, const Dims& shape, DType dtype) {
  OfRank& mine = of_rank();
  if (mine.watch) mine.watch->local(to, shape, dtype, mine.node);
}

std::vector<std::vector<NdSbp>> frozen_inputs(std::string_view op, std::span<const OpInput> inputs) {
  OfRank& mine = of_rank();
  return mine.watch ? mine.watch->frozen_inputs(op, inputs, mine.node) : std::vector<std::vector<NdSbp>>{};
}

std::optional<std::string> frozen_choice(std::string_view op) {
  OfRank& mine = of_rank();
  return mine.watch ? mine.watch->frozen_choice(op, mine.node) : std::nullopt;
}

void note_choice(std::string_view op, std::string_view choice) {
  OfRank& mine = of_rank();
  if (mine.watch) mine.watch->choice(op, choice, mine.node);
}

std::optional<bool> sums_gradients_together() {
  auto& watch = of_rank().watch;
  if (!watch || !watch->replays()) return std::nullopt;
  return !watch->gradients_together().empty();
}

std::optional<bool> sums_gradients_together(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                            DType dtype) {
  auto& watch = of_rank().watch;
  if (!watch || !watch->replays()) return std::nullopt;
  const auto list = watch->gradients_together();
  return std::any_of(list.begin(), list.end(), [&](const Entry* e) {
    return e->from == from && e->to == to && e->shape == shape && e->dtype == dtype;
  });
}

boxing::Plan plan_of(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  auto& watch = of_rank().watch;
  if (watch)
    if (auto plan = watch->plan_of(from, to, shape, dtype)) return *plan;
  return boxing::plan(from, to, shape, dtype);
}

Watch* current_watch() { return of_rank().watch.get(); }
void tell_listeners() {
  for (auto f : listeners()) f();
}

BackwardOf::BackwardOf(const char* node) : before_(std::exchange(Context::current().part<OfRank>().node, node)) {}
BackwardOf::~BackwardOf() { Context::current().part<OfRank>().node = before_; }

void on_change(void (*f)()) { listeners().push_back(f); }

MoveKey key_of(const Site* site, const Move& m, std::string_view node) {
  Hasher h;
  h.add_text(m.op).add_text(m.input).add_text(node).add(m.why);
  for (auto* t : m.targets) h.add(t);
  return {site, m.from, m.to, m.shape, m.dtype, h.value()};
}

std::string in_backward(std::string_view node, std::string_view what) {
  return node.empty() ? std::string(what) : fmt::format("backward of {}: {}", node, what);
}

std::string what_of(const Move& m, std::string_view node) {
  std::string what(m.op);
  switch (m.why) {
    case Why::kAsked: break;
    case Why::kInput: {
      std::string targets;
      for (auto* t : m.targets) targets += (targets.empty() ? "" : ", ") + (t ? t->nd_sbp.str() : "-");
      what += fmt::format(".{} ({})", m.input, targets);
      break;
    }
    case Why::kInside: what += fmt::format(".{} inside", m.input); break;
    case Why::kWritten: what += "'s result"; break;
  }
  return in_backward(node, what);
}

}  // namespace holon::contract
