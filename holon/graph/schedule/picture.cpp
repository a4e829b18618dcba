#include "holon/graph/schedule/picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"

namespace holon::graph {

namespace {

constexpr double kLeft = 120, kRight = 150, kRow = 34, kGap = 6, kLeast = 20, kNarrow = 560, kWide = 4000;

size_t at(int i) { return to_size(i); }

std::string escaped(const std::string& s) {
  std::string r;
  for (char c : s)
    r += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return r;
}

// Stage 0 is light, the last one dark.
std::string colour(Phase phase, int stage, int stages) {
  struct Ends {
    std::array<double, 3> light, dark;
  };
  static constexpr Ends kEnds[] = {
      {{198, 219, 239}, {74, 134, 190}}, {{253, 208, 162}, {230, 120, 40}}, {{199, 233, 192}, {70, 160, 95}}};
  const Ends& ends = at_index(kEnds, phase);
  const double share = stages > 1 ? static_cast<double>(stage) / (stages - 1) : 0.3;
  std::string text = "#";
  for (size_t i = 0; i < 3; ++i)
    text +=
        fmt::format("{:02x}", static_cast<int>(std::lround(ends.light[i] + share * (ends.dark[i] - ends.light[i]))));
  return text;
}

struct Drawing {
  std::string body;

  void text(double x, double y, const std::string& s, const char* anchor, const std::string& style = "") {
    body += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, style,
                        escaped(s));
  }
  void rect(double x, double y, double width, double height, const std::string& fill, const std::string& title = "") {
    body += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" "
                        "stroke=\"#fff\" stroke-width=\"0.7\"",
                        x, y, width, height, fill);
    body += title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(title));
  }
};

// The distance between marks of the axis: 1, 2 or 5 times a power of ten.
double tick_of(double time, double width) {
  const double least = time * 60 / width, power = std::pow(10, std::floor(std::log10(least)));
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

std::string stages_of(const Schedule& schedule, int device) {
  std::vector<int> own;
  for (int s = 0; s < schedule.stages; ++s)
    if (schedule.device_of_stage[at(s)] == device) own.push_back(s);
  if (own.empty()) return "no stage";
  std::string text = own.size() == 1 ? "stage " : "stages ";
  for (size_t i = 0; i < own.size() && i < 4; ++i) text += (i ? ", " : "") + std::to_string(own[i]);
  return text + (own.size() > 4 ? ", ..." : "");
}

}  // namespace

std::string schedule_svg(const Schedule& schedule, const Simulation& simulation) {
  bool same = simulation.spans.size() == schedule.tasks.size() && simulation.busy.size() == schedule.tasks.size() &&
      simulation.peak_on_device.size() == schedule.tasks.size();
  for (size_t d = 0; same && d < schedule.tasks.size(); ++d)
    same = simulation.spans[d].size() == schedule.tasks[d].size();
  if (!same)
    fail_value("schedule_svg: the simulation belongs to another schedule than {}. Pass simulate's result for this one.",
               schedule.name);

  // Wide enough for most boxings to show their number.
  std::vector<double> lengths;
  for (auto& list : simulation.spans)
    for (const Span& span : list)
      if (span.end > span.start) lengths.push_back(span.end - span.start);
  const double time = simulation.time > 0 ? simulation.time : 1;
  double width = kNarrow;
  if (!lengths.empty()) {
    const auto shortish = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 10);
    std::nth_element(lengths.begin(), shortish, lengths.end());
    width = std::clamp(kLeast * time / *shortish, kNarrow, kWide);
  }
  const double scale = width / time;

  Drawing d;
  d.text(20, 28, schedule.name, "start", "font-weight=\"bold\" font-size=\"15\"");
  auto counted = [](int n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); };
  d.text(20, 48,
         fmt::format("{} on {}, {}, time {:.4g}, bubble {:.1f} %", counted(schedule.stages, "stage"),
                     counted(schedule.devices, "device"),
                     schedule.micro_batches == 1 ? "1 micro-batch"
                                                 : fmt::format("{} micro-batches", schedule.micro_batches),
                     simulation.time, 100 * simulation.bubble),
         "start", "class=\"note\"");

  const double top = 88, bottom = top + (kRow + kGap) * schedule.devices;
  d.text(kLeft + width + 14, top - 10, "busy", "start", "class=\"axis\"");
  d.text(kLeft + width + 64, top - 10, "peak in flight", "start", "class=\"axis\"");
  const double tick = tick_of(time, width);
  for (int i = 0; i * tick <= time * (1 + 1e-9); ++i) {
    const double x = kLeft + i * tick * scale;
    d.body += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n", x,
                          top - 4, bottom + 4);
    d.text(x, bottom + 18, fmt::format("{:.6g}", i * tick), "middle", "class=\"axis\"");
  }
  d.text(kLeft - 12, bottom + 18, "time", "end", "class=\"axis\"");

  for (int device = 0; device < schedule.devices; ++device) {
    const double y = top + (kRow + kGap) * device;
    d.rect(kLeft, y, width, kRow, "#f4f4f4");
    d.text(kLeft - 12, y + 15, fmt::format("device {}", device), "end");
    d.text(kLeft - 12, y + 29, stages_of(schedule, device), "end", "class=\"axis\"");
    for (size_t i = 0; i < schedule.tasks[at(device)].size(); ++i) {
      const Task& t = schedule.tasks[at(device)][i];
      const Span& span = simulation.spans[at(device)][i];
      const double x = kLeft + span.start * scale, length = (span.end - span.start) * scale;
      d.rect(x, y, length, kRow, colour(t.phase, t.stage, schedule.stages),
             fmt::format("{}: {:.6g} to {:.6g}", t.str(), span.start, span.end));
      const std::string number = std::to_string(t.micro_batch);
      const double size = std::min(13.0, (length - 3) / (0.6 * static_cast<double>(number.size())));
      if (size >= 7)
        d.text(x + length / 2, y + kRow / 2 + 0.35 * size, number, "middle", fmt::format("font-size=\"{:.1f}\"", size));
    }
    d.text(kLeft + width + 14, y + kRow / 2 + 4, fmt::format("{:.0f} %", 100 * simulation.busy[at(device)] / time),
           "start", "class=\"note\"");
    d.text(kLeft + width + 64, y + kRow / 2 + 4, std::to_string(simulation.peak_on_device[at(device)]), "start",
           "class=\"note\"");
  }

  double x = kLeft;
  const double y = bottom + 36;
  auto legend = [&](Phase phase, const std::string& words) {
    const int shades = std::min(schedule.stages, 6);
    for (int i = 0; i < shades; ++i, x += 12)
      d.rect(x, y, 12, 14, colour(phase, shades > 1 ? i * (schedule.stages - 1) / (shades - 1) : 0, schedule.stages));
    d.text(x + 6, y + 12, words, "start", "class=\"note\"");
    x += 6 + 6.3 * static_cast<double>(words.size()) + 20;
  };
  legend(Phase::kForward, "F forward");
  if (schedule.training) legend(Phase::kBackward, schedule.splits_backward ? "B gradient of the input" : "B backward");
  if (schedule.splits_backward) legend(Phase::kWeight, "W gradients of the weights");
  const std::string shades =
      schedule.stages > 1 ? fmt::format("Light: stage 0, dark: stage {}", schedule.stages - 1) : "";
  d.text(kLeft, y + 34, shades.empty() ? "Numbers: micro-batches." : "Numbers: micro-batches. " + shades + ".", "start",
         "class=\"axis\"");

  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" font-family=\"sans-serif\" font-size=\"13\">\n<style>.axis {{ fill: #555; font-size: 11px; }} "
      ".note {{ fill: #333; font-size: 12px; }}</style>\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n{2}</svg>\n",
      kLeft + width + kRight, y + 50, d.body);
}

std::string str(const Schedule& schedule) {
  std::vector<int> stages(schedule.tasks.size());
  for (int device : schedule.device_of_stage)
    if (device >= 0 && at(device) < stages.size()) ++stages[at(device)];
  std::string text;
  const size_t margin = std::to_string(schedule.tasks.empty() ? 0 : schedule.tasks.size() - 1).size();
  for (size_t d = 0; d < schedule.tasks.size(); ++d) {
    text += fmt::format("{:>{}}:", d, margin);
    for (const Task& t : schedule.tasks[d]) {
      text += fmt::format(" {}{}", letter(t.phase), t.micro_batch);
      if (stages[d] > 1) text += fmt::format("@{}", t.stage);
    }
    text += "\n";
  }
  return text;
}

}  // namespace holon::graph
