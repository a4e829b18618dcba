#include "holon/comm/core/context_handoff.h"

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "holon/base/error.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

namespace {

constexpr int kFirstChannel = 16;  // below: the rank's own thread, its background, measurements

struct Handoffs {
  int made = 0;
};

auto& captures() {
  static std::vector<std::function<void()> (*)()> list;
  return list;
}

}  // namespace

bool inherit_in_handoff(std::function<void()> (*capture)()) {
  captures().push_back(capture);
  return true;
}

struct ContextHandoff::Scope::State {
  ~State() {
    if (!context) return;          // making it has failed
    ContextGuard guard(*context);  // for the parts that look at it when they go
    context.reset();
  }
  std::unique_ptr<Context> context;
  std::vector<std::function<void()>> inherited;
  std::atomic<bool> taken{false};
};

ContextHandoff::ContextHandoff() : state_(std::make_shared<Scope::State>()) {
  Context& current = Context::current();
  if (channel() != 0)
    fail_runtime(
        "a ContextHandoff was made in a thread that {} has been handed to itself. Make it in the thread that the "
        "rank began in, and pass it on.",
        rank_text());
  const int number = ++current.part<Handoffs>().made;
  std::shared_ptr<World> world = current.world_size() > 1 ? shared_world() : nullptr;
  state_->inherited = inherited_in_background();
  for (auto capture : captures()) state_->inherited.push_back(capture());
  state_->context = current.sibling();
  state_->context->set_number(number);
  ContextGuard guard(*state_->context);
  if (world) adopt_world(std::move(world));
  set_channel(kFirstChannel + number);
}

ContextHandoff::Scope ContextHandoff::enter() const {
  if (state_->taken.exchange(true))
    fail_runtime("a ContextHandoff of {} is used by two threads at a time. Make one for each thread.", rank_text());
  return Scope(state_);
}

ContextHandoff::Scope::Scope(std::shared_ptr<State> state)
    : state_(std::move(state)), before_(Context::exchange(state_->context.get())) {
  for (auto& apply : std::exchange(state_->inherited, {})) apply();
}

ContextHandoff::Scope::~Scope() {
  Context::exchange(before_);
  state_->taken = false;
}

}  // namespace holon::comm
