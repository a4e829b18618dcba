#include "holon/tensor/visualize.h"

#include <algorithm>
#include <map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/global/slice.h"

namespace holon {

namespace {

constexpr size_t kMostPlanes = 12;
constexpr size_t kMostAddends = 6;

// Runs of three and more as "0-5".
std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    if (end - i >= 3) {
      text += fmt::format("{}-{}", ranks[i], ranks[end - 1]);
      i = end;
    } else {
      text += std::to_string(ranks[i++]);
    }
  }
  return text;
}

std::string sum_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks.size() > kMostAddends && i == 3) {
      text += " + ...";
      i = ranks.size() - 1;
    }
    text += (i ? " + " : "") + std::to_string(ranks[i]);
  }
  return text;
}

std::string stretch(const Interval& i) {
  return i.size == 1 ? std::to_string(i.begin) : fmt::format("{}:{}", i.begin, i.end());
}

std::string title_of(const Dims& shape, DType dtype, const GlobalSpec* spec) {
  return fmt::format("{} {}, {}", name(dtype), shape, spec ? spec->str() : "local");
}

using Key = std::vector<int64_t>;

struct Part {
  Region slice;
  std::map<Key, std::vector<int>> copies;  // by the coordinates along broadcast axes
};

// Pieces of an axis, in order.
size_t place_of(std::vector<Interval>& pieces, int64_t begin, int64_t size) {
  auto at =
      std::lower_bound(pieces.begin(), pieces.end(), begin, [](const Interval& i, int64_t b) { return i.begin < b; });
  if (at == pieces.end() || at->begin != begin) at = pieces.insert(at, {begin, size});
  return to_size(at - pieces.begin());
}

// Draws a plane as SVG below y0; returns where it ends.
struct Drawing {
  std::string body;
  double width = 0, y = 0;

  static std::string escaped(const std::string& s) {
    std::string r;
    for (char c : s)
      r += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
    return r;
  }
  void text(double x, double at, const std::string& s, const char* anchor = "middle", const char* style = "") {
    body += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, at, anchor, style,
                        escaped(s));
  }
};

const char* colour(int rank) {
  static constexpr const char* kColours[] = {"#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc",
                                             "#fa9fb5", "#c7b299", "#f7dc6f", "#99d8c9"};
  return kColours[to_size(rank) % std::size(kColours)];
}

// Lengths on the page: in proportion, but none too small to be written into.
std::vector<double> lengths(const std::vector<Interval>& pieces, double total, double least) {
  int64_t all = 0;
  for (auto& p : pieces) all += p.size;
  std::vector<double> result;
  for (auto& p : pieces)
    result.push_back(
        std::max(least, total * static_cast<double>(p.size) / static_cast<double>(std::max<int64_t>(all, 1))));
  return result;
}

void draw(Drawing& d, const Picture& picture, const PicturePlane& plane) {
  const double left = picture.rows ? 70 : 20;
  size_t longest = 8;
  for (auto& c : plane.cells) longest = std::max(longest, c.text().size());
  auto widths = lengths(plane.columns, 420, 7.0 * static_cast<double>(longest) + 16),
       heights = lengths(plane.rows, picture.rows ? 160 : 40, 30);
  if (!plane.title.empty()) d.text(left, d.y += 22, plane.title, "start");
  d.y += 18;
  double x = left;
  for (size_t c = 0; c < widths.size(); x += widths[c++])
    if (picture.columns) d.text(x + widths[c] / 2, d.y, stretch(plane.columns[c]), "middle", "class=\"axis\"");
  d.y += 6;
  for (size_t r = 0; r < heights.size(); d.y += heights[r++]) {
    if (picture.rows) d.text(left - 8, d.y + heights[r] / 2 + 4, stretch(plane.rows[r]), "end", "class=\"axis\"");
    x = left;
    for (size_t c = 0; c < widths.size(); x += widths[c++]) {
      const PictureCell& cell = plane.cells[r * widths.size() + c];
      // A copy is a band; within it, each rank that adds to it is a stripe.
      const double band = heights[r] / static_cast<double>(std::max<size_t>(cell.copies.size(), 1));
      for (size_t k = 0; k < cell.copies.size(); ++k) {
        const auto& ranks = cell.copies[k];
        const double stripe = widths[c] / static_cast<double>(ranks.size());
        for (size_t i = 0; i < ranks.size(); ++i)
          d.body += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"{}/>\n",
                                x + stripe * static_cast<double>(i), d.y + band * static_cast<double>(k), stripe, band,
                                colour(ranks[i]), ranks.size() > 1 ? " stroke=\"#888\" stroke-dasharray=\"4\"" : "");
      }
      d.body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" stroke=\"#333\"/>\n", x,
          d.y, widths[c], heights[r]);
      d.text(x + widths[c] / 2, d.y + heights[r] / 2 + 4, cell.text(), "middle", "class=\"cell\"");
    }
    d.width = std::max(d.width, x + 20);
  }
}

}  // namespace

std::string PictureCell::text() const {
  const bool sums = std::any_of(copies.begin(), copies.end(), [](auto& c) { return c.size() > 1; });
  if (!sums) {
    std::vector<int> ranks;
    for (auto& c : copies) ranks.push_back(c[0]);
    return (ranks.size() > 1 ? "ranks " : "rank ") + list_of(ranks);
  }
  std::string text = "ranks ";
  for (size_t i = 0; i < copies.size(); ++i) text += (i ? " = " : "") + sum_of(copies[i]);
  return text;
}

Picture picture(const Tensor& t) {
  if (!t.defined()) fail_value("visualize: the tensor is undefined.");
  return picture(t.shape(), t.dtype(), t.is_local() ? nullptr : t.spec());
}

Picture picture(const Dims& shape, DType dtype, const GlobalSpec* spec) {
  const int n = shape.size(), me = Context::current().rank();
  Picture p;
  p.title = title_of(shape, dtype, spec);
  p.columns = n >= 1, p.rows = n >= 2;

  // Parts that are equal belong to one cell; different ones are disjoint.
  std::map<Key, Part> parts;
  std::vector<int> idle;
  if (!spec) {
    Dims zero = shape;
    for (int i = 0; i < n; ++i) zero[i] = 0;
    if (shape.numel() > 0)
      parts[{}] = {{zero, shape}, {{{}, {me}}}};
    else
      idle.push_back(me);
  } else {
    const Placement& placement = spec->placement;
    const NdSbp& sbp = spec->nd_sbp;
    for (int index = 0; index < static_cast<int>(placement.ranks().size()); ++index) {
      const int rank = static_cast<int>(at_index(placement.ranks(), index));
      Region slice = region_of(shape, placement, sbp, index);
      if (slice.shape.numel() == 0) {
        idle.push_back(rank);
        continue;
      }
      Dims at = placement.coordinate(index);
      Key copy;
      for (int a = 0; a < at.size(); ++a)
        if (sbp[a].is_broadcast()) copy.push_back(at[a]);
      Part& part = parts[Key(slice.offset.begin(), slice.offset.end())];
      part.slice = slice;
      part.copies[copy].push_back(rank);
    }
  }

  // The stretches of the leading axes make the planes, those of the last two their rows and columns.
  const int leading = std::max(0, n - 2);
  std::map<Key, std::vector<const Part*>> planes;
  for (auto& [offset, part] : parts)
    planes[Key(offset.begin(), offset.begin() + std::min<long>(leading, static_cast<long>(offset.size())))].push_back(
        &part);
  for (auto& [key, members] : planes) {
    if (p.planes.size() == kMostPlanes) {
      p.notes.push_back(fmt::format("{} more stretches of the first axes are not shown.", planes.size() - kMostPlanes));
      break;
    }
    PicturePlane plane;
    const Region& first = members[0]->slice;
    for (int i = 0; i < leading; ++i) plane.title += stretch({first.offset[i], first.shape[i]}) + ", ";
    if (leading) plane.title = "[" + plane.title + ":, :]";
    auto row_of = [&](const Region& s) { return n >= 2 ? Interval{s.offset[n - 2], s.shape[n - 2]} : Interval{0, 1}; };
    auto column_of = [&](const Region& s) {
      return n >= 1 ? Interval{s.offset[n - 1], s.shape[n - 1]} : Interval{0, 1};
    };
    for (const Part* part : members) {
      place_of(plane.rows, row_of(part->slice).begin, row_of(part->slice).size);
      place_of(plane.columns, column_of(part->slice).begin, column_of(part->slice).size);
    }
    plane.cells.resize(plane.rows.size() * plane.columns.size());
    for (const Part* part : members) {
      const size_t r = place_of(plane.rows, row_of(part->slice).begin, 0),
                   c = place_of(plane.columns, column_of(part->slice).begin, 0);
      PictureCell& cell = plane.cells[r * plane.columns.size() + c];
      for (auto& [coordinates, ranks] : part->copies) {
        cell.copies.push_back(ranks);
        cell.here |= std::find(ranks.begin(), ranks.end(), me) != ranks.end();
      }
    }
    p.planes.push_back(std::move(plane));
  }
  if (shape.numel() == 0)
    p.notes.push_back("The tensor has no elements.");
  else if (!idle.empty())
    p.notes.push_back(fmt::format("{} {} hold{} an empty part.", idle.size() > 1 ? "Ranks" : "Rank", list_of(idle),
                                  idle.size() > 1 ? "" : "s"));
  return p;
}

std::string Picture::text() const {
  std::string result = title + "\n";
  bool here = false;
  for (const PicturePlane& plane : planes) {
    if (!plane.title.empty()) result += plane.title + "\n";
    auto cell_text = [&](const PictureCell& c) { return c.text() + (c.here ? " *" : ""); };
    size_t margin = 0;
    std::vector<size_t> widths;
    for (auto& r : plane.rows) margin = std::max(margin, rows ? stretch(r).size() : 0);
    for (size_t c = 0; c < plane.columns.size(); ++c) {
      size_t width = columns ? stretch(plane.columns[c]).size() : 0;
      for (size_t r = 0; r < plane.rows.size(); ++r)
        width = std::max(width, cell_text(plane.cells[r * plane.columns.size() + c]).size());
      widths.push_back(width);
    }
    std::string line = fmt::format("  {:{}}   ", "", margin);
    for (size_t c = 0; columns && c < widths.size(); ++c)
      line += fmt::format("{:^{}}   ", stretch(plane.columns[c]), widths[c]);
    if (columns) result += line.erase(line.find_last_not_of(' ') + 1) + "\n";
    for (size_t r = 0; r < plane.rows.size(); ++r) {
      result += fmt::format("  {:>{}} |", rows ? stretch(plane.rows[r]) : "", margin);
      for (size_t c = 0; c < widths.size(); ++c) {
        const PictureCell& cell = plane.cells[r * widths.size() + c];
        here |= cell.here;
        result += fmt::format(" {:^{}} |", cell_text(cell), widths[c]);
      }
      result += "\n";
    }
  }
  for (auto& note : notes) result += note + "\n";
  if (here) result += "* this rank\n";
  return result;
}

std::string Picture::svg() const {
  Drawing d;
  d.y = 24;
  d.text(20, d.y, title, "start", "font-weight=\"bold\"");
  d.width = 8.0 * static_cast<double>(title.size()) + 40;
  for (auto& plane : planes) draw(d, *this, plane);
  for (auto& note : notes) d.text(20, d.y += 22, note, "start");
  return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 "
                     "{0:.0f} {1:.0f}\" font-family=\"sans-serif\" "
                     "font-size=\"13\">\n<style>.axis {{ fill: #555; font-size: 11px; }} "
                     // Where stripes meet behind a text, its letters stay clear.
                     ".cell {{ paint-order: stroke; stroke: #fff; stroke-opacity: 0.6; stroke-width: 4px; "
                     "stroke-linejoin: round; }}</style>\n<rect width=\"100%\" "
                     "height=\"100%\" fill=\"white\"/>\n{2}</svg>\n",
                     d.width, d.y + 20, d.body);
}

std::string visualize(const Tensor& t) { return picture(t).text(); }
std::string visualize_svg(const Tensor& t) { return picture(t).svg(); }

std::string explain(const Tensor& x, const Placement& placement, const NdSbp& sbp) {
  if (x.is_local())
    fail_runtime("explain: the tensor is local; boxing is between global ones. Use to_global(placement, sbp) first.");
  check_nd_sbp(x.shape(), placement, sbp, "explain");
  return boxing::explain(x.spec(), intern_spec(placement, sbp), x.shape(), x.dtype());
}

}  // namespace holon
