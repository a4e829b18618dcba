#include "holon/tensor/observer.h"

#include "holon/base/context.h"

namespace holon {

namespace detail {

constinit std::atomic<int> observers{0};

namespace {
struct ObserverOfRank {
  Observer* observer = nullptr;
};
}  // namespace

Observer* find_observer() { return Context::current().part<ObserverOfRank>().observer; }

}  // namespace detail

Observer* exchange_observer(Observer* observer) {
  Observer*& current = Context::current().part<detail::ObserverOfRank>().observer;
  Observer* const before = std::exchange(current, observer);
  detail::observers += (observer ? 1 : 0) - (before ? 1 : 0);
  return before;
}

}  // namespace holon
