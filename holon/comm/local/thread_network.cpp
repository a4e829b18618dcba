#include "holon/comm/local/thread_network.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"

namespace holon::comm {

class ThreadNetwork::Flight final : public Network::Transit {
 public:
  Flight(std::shared_ptr<ThreadHub> hub, int rank, std::span<const Message> send, std::span<const Message> receive)
      : hub_(std::move(hub)), sent_(send.size()), received_(receive.size()) {
    std::scoped_lock lock(hub_->mutex_);
    for (size_t i = 0; i < send.size(); ++i) post({rank, send[i].rank, send[i].tag}, send[i], true, &sent_[i].done);
    for (size_t i = 0; i < receive.size(); ++i)
      post({receive[i].rank, rank, receive[i].tag}, receive[i], false, &received_[i].done);
    hub_->changed_.notify_all();
  }
  ~Flight() override {
    std::scoped_lock lock(hub_->mutex_);
    for (auto& key : keys_)
      if (auto it = hub_->pending_.find(key); it != hub_->pending_.end()) hub_->pending_.erase(it);
  }

  Failure wait_received(const Trouble& trouble) override { return wait(received_, trouble); }
  Failure wait_sent(const Trouble& trouble) override { return wait(sent_, trouble); }

 private:
  struct Flag {
    bool done = false;
  };
  using Key = std::tuple<int, int, uint64_t>;

  void post(const Key& key, const Message& m, bool sends, bool* done) {
    auto [it, first] = hub_->pending_.try_emplace(key);
    (sends ? it->second.sender : it->second.receiver) = {static_cast<std::byte*>(m.data), m.bytes, done};
    if (first) {
      keys_.push_back(key);
      return;
    }
    auto [from, to] = it->second;
    HOLON_CHECK(from.bytes == to.bytes, "a message of {} bytes for a receiver of {} bytes", from.bytes, to.bytes);
    if (from.bytes) std::memcpy(to.data, from.data, from.bytes);
    *from.done = *to.done = true;
    hub_->pending_.erase(it);
  }

  Failure wait(const std::vector<Flag>& flags, const Trouble& trouble) {
    BlockingScope unlocked;
    std::unique_lock lock(hub_->mutex_);
    auto all = [&] { return std::all_of(flags.begin(), flags.end(), [](const Flag& f) { return f.done; }); };
    while (!hub_->changed_.wait_for(lock, std::chrono::milliseconds(50), all)) {
      lock.unlock();
      std::string why = trouble();
      lock.lock();
      if (!why.empty() && !all()) return {-1, why};
    }
    return {};
  }

  std::shared_ptr<ThreadHub> hub_;
  std::vector<Flag> sent_, received_;
  std::vector<Key> keys_;
};

std::unique_ptr<Network::Transit> ThreadNetwork::start(std::span<const Message> send,
                                                       std::span<const Message> receive) {
  return std::make_unique<Flight>(hub_, rank_, send, receive);
}

}  // namespace holon::comm
