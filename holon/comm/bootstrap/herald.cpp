#include "holon/comm/bootstrap/herald.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "holon/comm/bootstrap/store.h"

namespace holon::comm {

namespace {
constexpr double kConnectSeconds = 3600, kAnswerSeconds = 5;
}  // namespace

struct Herald::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<int, std::string>> news;
  bool gone = false, over = false;  // gone: the store, or nobody has come there in time

  // Another launcher's store may never be there, or end before this launcher does.
  static void run(std::shared_ptr<State> s, std::string host, int port, std::string token) {
    try {
      StoreClient store(host, port, token, kConnectSeconds);
      std::unique_lock lock(s->mutex);
      for (;;) {
        s->changed.wait(lock, [&] { return s->over || !s->news.empty(); });
        if (s->news.empty()) return;
        const auto [rank, how] = s->news.front();
        lock.unlock();
        store.leave(kRanksKey, rank, how, kAnswerSeconds);
        lock.lock();
        s->news.pop_front();
        s->changed.notify_all();
      }
    } catch (const std::exception&) {
      std::lock_guard lock(s->mutex);
      s->gone = true;
      s->changed.notify_all();
    }
  }
};

Herald::Herald(const std::string& host, int port, const std::string& token) : state_(std::make_shared<State>()) {
  std::thread(&State::run, state_, host, port, token).detach();
}

Herald::~Herald() {
  std::lock_guard lock(state_->mutex);
  state_->over = true;
  state_->changed.notify_all();
}

void Herald::ended(int rank, const std::string& how) {
  std::lock_guard lock(state_->mutex);
  state_->news.emplace_back(rank, how);
  state_->changed.notify_all();
}

void Herald::finish(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, timeout, [&] { return state_->gone || state_->news.empty(); });
}

}  // namespace holon::comm
