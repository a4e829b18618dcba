// Records: counts what each line moves, step by step.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/core/communicator.h"
#include "holon/contract/watch.h"
#include "holon/cost/machine.h"

namespace holon::contract {

namespace {

class Recorder final : public Watch {
 public:
  explicit Recorder(const std::string& file) : file_(file) {
    const Machine& m = *machine();
    document_.ranks = Context::current().world_size();
    document_.hosts = 0;
    std::set<int> hosts;
    for (int r = 0; r < document_.ranks; ++r) hosts.insert(m.hosts.host(r));
    document_.hosts = static_cast<int>(hosts.size());
    document_.machine = text_of(m.costs);
    document_.sections.push_back({});
  }

  boxing::Plan move(const Move& m, std::string_view node) override {
    boxing::Plan plan = boxing::plan(m.from, m.to, m.shape, m.dtype);
    const Site* site = current_site();
    auto [at, fresh] = by_key_.try_emplace(key_of(site, m, node));
    if (fresh) at->second = number_of(*site, entry_of(what_of(m, node), plan));
    ++at_index(now_, at->second);
    return plan;
  }

  void local(const GlobalSpec* to, const Dims& shape, DType dtype, std::string_view node) override {
    count(*current_site(), entry_of_local(in_backward(node, "to_global"), to, shape, dtype));
  }

  void choice(std::string_view op, std::string_view choice, std::string_view node) override {
    count(*current_site(), entry_of_choice(in_backward(node, op), choice));
  }

  void graph(const Section& now) override {
    for (const Section& s : graphs_)
      if (s.name == now.name) return;
    graphs_.push_back(now);
  }

  void end_step() override {
    const std::string name = current_site()->str();
    if (!started_) {
      document_.sections[0].name = name;
      close_section(document_.sections[0]);
      started_ = true;
      return;
    }
    auto at = std::find_if(document_.sections.begin(), document_.sections.end(),
                           [&](const Section& s) { return s.kind == Section::Kind::kStep && s.name == name; });
    if (at == document_.sections.end())
      at = document_.sections.insert(document_.sections.end(), {Section::Kind::kStep, name, 0, {}});
    close_section(*at);
  }

  const std::string& file() const override { return file_; }

  void close(bool together, bool failed) override {
    if (failed) return;
    if (!started_) {
      close_section(document_.sections[0]);
    } else if (std::any_of(now_.begin(), now_.end(), [](int64_t n) { return n > 0; })) {
      document_.sections.push_back({Section::Kind::kEnd, "", 0, {}});
      close_section(document_.sections.back());
    }
    for (Section& s : graphs_) document_.sections.push_back(std::move(s));
    if (together) compare(document_.str());
    std::string why;
    if (rank_ == 0) try {
        write_document(document_, file_);
      } catch (const Error& e) {
        why = e.what();
      }
    // Nobody goes on before the file is there.
    if (together && of_all(uint64_t{why.empty()})[0] == 0 && why.empty())
      fail_runtime("contract {}: rank 0 could not write it. Its error says why.", file_);
    if (!why.empty()) throw Error(ErrorKind::kRuntime, why);
  }

 private:
  struct Seen {
    Site site;
    Entry entry;
  };

  int number_of(const Site& site, Entry entry) {
    const std::string key = site.str() + "\n" + entry.key();
    auto [at, fresh] = by_text_.try_emplace(key, static_cast<int>(seen_.size()));
    if (fresh) {
      seen_.push_back({site, std::move(entry)});
      now_.push_back(0);
    }
    return at->second;
  }
  void count(const Site& site, Entry entry) { ++at_index(now_, number_of(site, std::move(entry))); }

  // What was counted becomes one more step of the section.
  void close_section(Section& s) {
    std::vector<bool> counted(now_.size());
    for (Lines& l : s.lines)
      for (Entry& e : l.entries) {
        const int number = by_text_.at(l.site.str() + "\n" + e.key());
        e.least = std::min(e.least, at_index(now_, number));
        e.most = std::max(e.most, at_index(now_, number));
        counted[to_size(number)] = true;
      }
    for (size_t i = 0; i < now_.size(); ++i) {
      if (counted[i] || now_[i] == 0) continue;
      Entry e = seen_[i].entry;
      e.least = s.times ? 0 : now_[i];
      e.most = now_[i];
      s.add(seen_[i].site, std::move(e));
    }
    ++s.times;
    std::fill(now_.begin(), now_.end(), 0);
  }

  // What all ranks have.
  static std::vector<uint64_t> of_all(uint64_t mine) {
    std::vector<int> ranks(to_size(Context::current().world_size()));
    for (size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
    std::vector<uint64_t> all(ranks.size(), mine);
    if (ranks.size() > 1) comm::communicator(ranks).all_gather_bytes({"contract"}, &mine, sizeof mine, all.data());
    return all;
  }

  void compare(const std::string& text) const {
    const auto all = of_all(hash_text(text));
    for (size_t r = 1; r < all.size(); ++r)
      if (all[r] != all[0])
        fail_runtime("contract {}: rank {} has recorded other boxings than rank 0. Global tensors are the program's, "
                     "not a rank's: call what redistributes them on every rank, at the same lines.",
                     file_, r);
  }

  const std::string file_;
  const int rank_ = Context::current().rank();  // another context may be current when it is closed
  Document document_;
  std::vector<Section> graphs_;
  bool started_ = false;  // the first step has ended
  std::unordered_map<MoveKey, int, MoveKeyHash> by_key_;
  std::unordered_map<std::string, int> by_text_;
  std::vector<Seen> seen_;
  std::vector<int64_t> now_;  // of each of them, in this step
};

}  // namespace

std::shared_ptr<Watch> make_recorder(const std::string& file) { return std::make_shared<Recorder>(file); }

}  // namespace holon::contract
