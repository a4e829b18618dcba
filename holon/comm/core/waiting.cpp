#include "holon/comm/core/waiting.h"

#include <algorithm>
#include <cstring>

#include "holon/array/storage.h"
#include "holon/base/fmt.h"

namespace holon::comm {

namespace {

// How long a late rank gets to say where it is.
constexpr double kAskSeconds = 0.5;

bool has(std::span<const int> ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

// For whom a rank that sleeps in a group waits there, and for whom that one waits, and so on: stages of a pipeline wait
// in chains, and whoever gives up first is often far from the one that does not come. *last: where the chain ends, if
// that is one rank and not this one.
std::string follow(const World& world, uint32_t group, int* last) {
  std::string text = " It waits there for";
  std::vector<int> seen = {world.rank()};
  for (;;) {
    std::vector<int> missed = world.block().group_ranks(static_cast<int>(group) - 1);
    std::erase_if(missed, [&](int r) { return world.block().rank_entry(r).waiting_group.load() == group; });
    if (missed.empty()) return seen.size() == 1 ? "" : text + " others.";
    text += fmt::format(" rank{} {}", missed.size() > 1 ? "s" : "", list_text(missed));
    if (missed.size() > 1 || has(seen, missed[0])) return text + '.';
    seen.push_back(missed[0]);
    const RankEntry& entry = world.block().rank_entry(missed[0]);
    group = entry.waiting_group.load();
    if (group == 0) {
      *last = missed[0];
      return text + '.';
    }
    text += fmt::format(", which waits in {}, call {}, for", world.block().group_text(static_cast<int>(group) - 1),
                        entry.waiting_call.load());
  }
}

}  // namespace

std::string list_text(std::span<const int> ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

StagingBuffer::StagingBuffer(size_t bytes) : data_(bytes ? allocate_block(bytes) : nullptr), bytes_(bytes) {}

StagingBuffer::StagingBuffer(const void* data, size_t bytes) : StagingBuffer(bytes) {
  if (bytes) std::memcpy(data_, data, bytes);
}

StagingBuffer::~StagingBuffer() {
  if (data_) free_block(data_, bytes_);
}

std::string last_seen(const World& world, int rank) {
  const RankReport& report = world.block().rank_entry(rank).report;
  const std::string trouble =
      report.troubled.load() == 2 ? fmt::format("Another thread of it has failed: {}. ", report.trouble) : "";
  auto calls = report.last_calls(1);
  if (calls.empty()) return trouble + "It has called no collective yet. ";
  const CallNote& c = calls[0];
  const size_t axes = std::min<size_t>(c.axes, std::size(c.shape));
  return fmt::format("{}Its last call was {} {} {} ({} bytes), call {} of group {}. ", trouble, c.op,
                     Dims(std::span(c.shape, axes)), name(c.dtype), c.bytes, c.call, world.block().group_text(c.group));
}

std::vector<std::string> describe_late(const World& world, std::span<const int> ranks, int table_index) {
  ranks = ranks.first(std::min(ranks.size(), kMostDescribed));
  std::vector<RankReport*> reports;
  // A rank that waits elsewhere may give up at the same time as this one: looked at first.
  std::vector<std::string> texts;
  std::vector<int> ends;
  std::vector<size_t> asked_for;  // of an end: the text that tells of it
  for (int rank : ranks) {
    RankEntry& entry = world.block().rank_entry(rank);
    reports.push_back(&entry.report);
    const uint32_t other = entry.waiting_group.load();
    texts.emplace_back();
    if (other == 0 || other == static_cast<uint32_t>(table_index) + 1) continue;
    int end = -1;
    texts.back() = fmt::format(" Rank {} waits in another group, {}, in its call {}.{}", rank,
                               world.block().group_text(static_cast<int>(other) - 1), entry.waiting_call.load(),
                               follow(world, other, &end));
    if (end < 0 || has(ranks, end) || has(ends, end)) continue;
    ends.push_back(end);
    asked_for.push_back(texts.size() - 1);
  }
  for (int rank : ends) reports.push_back(&world.block().rank_entry(rank).report);
  std::vector<std::string> where = ask_where(reports, kAskSeconds);
  auto about = [&](int rank, size_t i) {
    std::string text = fmt::format(" Rank {} {}. {}", rank, where[i], last_seen(world, rank));
    return text.substr(0, text.find_last_not_of(' ') + 1);
  };
  for (size_t i = 0; i < ends.size(); ++i) texts[asked_for[i]] += about(ends[i], ranks.size() + i);
  for (size_t i = 0; i < texts.size(); ++i) texts[i] += about(ranks[i], i);
  return texts;
}

}  // namespace holon::comm
