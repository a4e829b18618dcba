#include <algorithm>
#include <cmath>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/graph/picture/memory_use.h"
#include "holon/graph/picture/svg.h"

namespace holon::graph {

namespace {

constexpr double kLeft = 110, kWidth = 780, kHeight = 150, kBar = 14, kGap = 48, kTop = 84;
constexpr size_t kMostPoints = 780;
// From the bottom of a panel to its top: what stays, then what comes and goes.
constexpr const char* kColours[] = {"#6b7a99", "#9aa7c4", "#c9cfdd", "#c7b299",
                                    "#4c92c3", "#f28e3c", "#b07cc6", "#d9d9d9"};

// The instruction with the most memory in each of so many equal parts.
std::vector<size_t> points_of(const MemoryUse& use) {
  const size_t n = use.at.size(), points = std::min(n, kMostPoints);
  std::vector<size_t> chosen;
  for (size_t p = 0; p < points; ++p) {
    size_t best = p * n / points;
    for (size_t i = best; i < (p + 1) * n / points; ++i)
      if (use.total(i) > use.total(best)) best = i;
    chosen.push_back(best);
  }
  return chosen;
}

// The distance of marks in bytes: a power of two of which four to eight fit.
double tick_of(double most) { return std::exp2(std::floor(std::log2(std::max(most, 8.0) / 4))); }

void panel(Svg& d, const MemoryUse& use, double y, double most) {
  const double bottom = y + kHeight, scale = kHeight / most,
               n = static_cast<double>(std::max<size_t>(use.at.size(), 1));
  for (double tick = tick_of(most), at = 0; at <= most; at += tick) {
    d.line(kLeft, bottom - at * scale, kLeft + kWidth, bottom - at * scale, "stroke=\"#e5e5e5\"");
    d.text(kLeft - 6, bottom - at * scale + 4, bytes_text(static_cast<int64_t>(at)), "class=\"axis\"", "end");
  }
  const auto points = points_of(use);
  const double step = points.empty() ? 0 : kWidth / static_cast<double>(points.size());
  std::vector<double> below(points.size(), 0);
  for (size_t k = 0; k < kMemoryKinds; ++k) {
    std::string up, down;
    bool any = false;
    for (size_t p = 0; p < points.size(); ++p) {
      const double x = kLeft + step * static_cast<double>(p), base = below[p];
      const auto bytes = static_cast<double>(use.at[points[p]][k]);
      any |= bytes > 0;
      below[p] += bytes;
      const double level = bottom - below[p] * scale;
      up += p ? fmt::format("V{:.1f}", level) : fmt::format("M{:.1f} {:.1f}", x, level);
      up += fmt::format("H{:.1f}", x + step);
      down = fmt::format("V{:.1f}H{:.1f}", bottom - base * scale, x) + down;
    }
    if (any)
      d.path(up + down + "Z", fmt::format("fill=\"{}\"", kColours[k]),
             fmt::format("{}: at most {}", name(static_cast<MemoryKind>(k)), bytes_text(use.most()[k])));
  }
  d.text(kLeft - 6, y - 10, fmt::format("rank {}", use.rank), "font-weight=\"bold\"", "end");
  const size_t peak = use.peak();
  if (peak < use.at.size()) {
    const double x = kLeft + (static_cast<double>(peak) + 0.5) / n * kWidth,
                 top = bottom - static_cast<double>(use.total(peak)) * scale;
    d.line(x, top - 6, x, top, "stroke=\"#c00\" stroke-width=\"2\"");
    const bool right = x < kLeft + kWidth - 180;
    d.text(right ? x + 5 : x - 5, top - 3, fmt::format("peak {}", bytes_text(use.total(peak))),
           "class=\"note\" fill=\"#c00\"", right ? "start" : "end");
  }
  d.text(kLeft + kWidth + 8, bottom - 2, fmt::format("arena {}", bytes_text(use.arena_bytes)), "class=\"axis\"");
  for (auto& t : use.tasks) {
    static constexpr const char* kPhases[] = {"#9ecae1", "#fdae6b", "#a1d99b"};
    const double x = kLeft + t.first / n * kWidth, width = (t.end - t.first) / n * kWidth;
    d.rect(x, bottom + 3, width, kBar,
           fmt::format("fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.7\"", at_index(kPhases, t.task.phase)),
           t.task.str());
    const std::string label = fmt::format("{}{}", letter(t.task.phase), t.task.micro_batch);
    if (width > 8.0 * static_cast<double>(label.size()))
      d.text(x + width / 2, bottom + kBar, label, "class=\"axis\"", "middle");
  }
}

}  // namespace

std::string memory_svg(std::span<const MemoryUse> ranks) {
  if (ranks.empty()) fail_value("memory_svg: there is no rank to draw. Pass memory_use(step).");
  double most = 1;
  for (auto& use : ranks)
    if (!use.at.empty()) most = std::max(most, static_cast<double>(use.total(use.peak())));
  most *= 1.12;
  Svg d;
  d.text(20, 28, "memory over the step", "class=\"head\"");
  double x = 20;
  for (size_t k = 0; k < kMemoryKinds; ++k) {
    bool any = false;
    for (auto& use : ranks) any |= use.most()[k] > 0;
    if (!any) continue;
    const std::string words = name(static_cast<MemoryKind>(k));
    d.rect(x, 40, 12, 12, fmt::format("fill=\"{}\"", kColours[k]));
    d.text(x + 16, 51, words, "class=\"note\"");
    x += 28 + 6.6 * static_cast<double>(words.size());
  }
  double y = kTop;
  for (auto& use : ranks) {
    panel(d, use, y, most);
    y += kHeight + kBar + kGap;
  }
  d.text(kLeft, y - kGap + 20,
         "Instructions of the step from left to right; below them the tasks: F forward, B backward, W gradients of "
         "weights, with the micro-batch.",
         "class=\"axis\"");
  return d.page(std::max(kLeft + kWidth + 110, x + 20), y);
}

}  // namespace holon::graph
