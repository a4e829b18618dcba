#include "holon/comm/waiting.h"

#include <cstring>

#include "holon/array/storage.h"

namespace holon::comm {

namespace {

// How long a late rank gets to say where it is.
constexpr double kAskSeconds = 0.5;

}  // namespace

std::string list_text(std::span<const int> ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

Bounce::Bounce(size_t bytes) : data_(bytes ? allocate_block(bytes) : nullptr), bytes_(bytes) {}

Bounce::Bounce(const void* data, size_t bytes) : Bounce(bytes) {
  if (bytes) std::memcpy(data_, data, bytes);
}

Bounce::~Bounce() {
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
  for (int rank : ranks) {
    RankEntry& entry = world.block().rank_entry(rank);
    reports.push_back(&entry.report);
    const uint32_t other = entry.waiting_group.load();
    texts.push_back(other == 0 || other == static_cast<uint32_t>(table_index) + 1
                        ? ""
                        : fmt::format(" Rank {} waits in another group, {}, in its call {}.", rank,
                                      world.block().group_text(static_cast<int>(other) - 1),
                                      entry.waiting_call.load()));
  }
  std::vector<std::string> where = ask_where(reports, kAskSeconds);
  for (size_t i = 0; i < texts.size(); ++i)
    texts[i] += fmt::format(" Rank {} {}. {}", ranks[i], where[i], last_seen(world, ranks[i]));
  return texts;
}

}  // namespace holon::comm
