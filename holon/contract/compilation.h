// The compilation of a graph while a contract is recorded or in force.
//
// What is chosen by cost becomes a part of the contract that is recorded: the layouts that calls take, and the paths
// that passes compare. Under a contract in force that has the graph, all of it is taken from there.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/boxing/planner.h"
#include "holon/contract/watch.h"

namespace holon::contract {

class Compilation final : public boxing::PlanSource {
 public:
  // name: of the graph with its inputs. Pre: a contract is recorded or in force (is_watching()).
  explicit Compilation(std::string name);
  ~Compilation() override;
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  // That of the current rank, or nullptr.
  static Compilation* current();

  // Whether the contract in force has the graph.
  bool is_frozen() const { return had_ != nullptr; }
  // What is next for the call in the contract in force; nullopt: nothing (more).
  std::optional<std::string_view> next(const std::string& call);
  // What was chosen for it, to be recorded.
  void note(const std::string& call, const std::string& taken);

  // It is compiled: what each call of it moves, in the order of its nodes. Errors: that is not what the contract in
  // force has.
  void end(const std::vector<std::pair<Site, Entry>>& entries);

  // While it exists, what the planner is asked on this rank is a search, whose result is noted by itself.
  class Search {
   public:
    Search() : of_(current()) {
      if (of_) ++of_->searches_;
    }
    ~Search() {
      if (of_) --of_->searches_;
    }
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

   private:
    Compilation* of_;
  };

  std::optional<boxing::Plan> find(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                   DType dtype) override;
  void planned(const boxing::Plan& plan) override;

 private:
  struct Path {
    const Entry* entry;
    std::string where;
    std::optional<boxing::Plan> plan;
  };
  void add_path(const Entry& e, const std::string& where);

  Watch& watch_;
  const Section* had_;  // of the contract in force
  std::unordered_map<MoveKey, Path, MoveKeyHash> paths_;
  std::unordered_map<std::string_view, std::pair<size_t, int64_t>> at_;  // of each call: where in had_, how often taken
  Section now_;
  std::unordered_map<std::string, size_t> last_;            // of each call: in now_.layouts
  std::unordered_map<MoveKey, size_t, MoveKeyHash> asked_;  // in now_.paths
  int searches_ = 0;
  Compilation* before_;
  boxing::PlanSource* source_before_;
};

}  // namespace holon::contract
