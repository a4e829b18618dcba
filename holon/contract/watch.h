// What a rank does about its boxings while a contract is recorded or in force.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holon/base/hash.h"
#include "holon/contract/moves.h"

namespace holon::contract {

class Watch {
 public:
  virtual ~Watch() = default;
  // node: whose gradient is computed; "" for none.
  virtual boxing::Plan move(const Move& move, std::string_view node) = 0;
  virtual void local(const GlobalSpec* to, const Dims& shape, DType dtype, std::string_view node) = 0;
  virtual void choice(std::string_view op, std::string_view choice, std::string_view node) = 0;
  virtual void graph(const Section& section) = 0;  // was compiled
  virtual void end_step() = 0;
  // together: all ranks close it here. failed: the program did not come to its end.
  virtual void close(bool together, bool failed) = 0;

  virtual const std::string& file() const = 0;

  // Of a contract in force.
  virtual bool replays() const { return false; }
  virtual std::vector<std::vector<NdSbp>> frozen_inputs(std::string_view, std::span<const OpInput>, std::string_view) {
    return {};
  }
  virtual std::optional<std::string> frozen_choice(std::string_view, std::string_view) { return std::nullopt; }
  // What the contract has of a graph, or nullptr.
  virtual const Section* frozen_graph(const std::string&) const { return nullptr; }
  virtual std::span<const Entry* const> gradients_together() const { return {}; }
  virtual std::optional<boxing::Plan> plan_of(const GlobalSpec*, const GlobalSpec*, const Dims&, DType) {
    return std::nullopt;
  }
};

std::shared_ptr<Watch> make_recorder(const std::string& file);
std::shared_ptr<Watch> make_replayer(const std::string& file);

// That of the current rank, or nullptr.
Watch* current_watch();
// What was kept for the contract before is forgotten.
void tell_listeners();

// A move as a key, so that one that was seen before is found without text.
struct MoveKey {
  const Site* site;
  const GlobalSpec *from, *to;
  Dims shape;
  DType dtype;
  uint64_t what;  // a hash of all that the text of the entry comes from
  bool operator==(const MoveKey&) const = default;
};
struct MoveKeyHash {
  size_t operator()(const MoveKey& k) const {
    Hasher h;
    h.add(k.site).add(k.from).add(k.to).add(k.dtype).add(k.what);
    for (int64_t n : k.shape) h.add(n);
    return h.value();
  }
};
MoveKey key_of(const Site* site, const Move& move, std::string_view node);

// "backward of matmul: mul.y (B, B)": Entry::what.
std::string what_of(const Move& move, std::string_view node);
std::string in_backward(std::string_view node, std::string_view what);

}  // namespace holon::contract
