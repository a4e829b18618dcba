// Tells the ranks of all hosts, through the store, what only a launcher sees: that a rank has ended.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace holon::comm {

class Herald {
 public:
  // Connects in its own thread: nobody waits for a store that is late or gone.
  Herald(const std::string& host, int port, const std::string& token);
  ~Herald();
  Herald(const Herald&) = delete;
  Herald& operator=(const Herald&) = delete;

  // how: "has ended", say. Ranks that are not connected yet need not wait for it.
  void ended(int rank, const std::string& how);
  // Waits until all is told, or there is no store to tell any more, or for so long.
  void finish(std::chrono::milliseconds timeout);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too
};

}  // namespace holon::comm
