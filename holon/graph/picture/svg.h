// The little of SVG that pictures here are made of.
#pragma once

#include <string>

#include "holon/base/format.h"

namespace holon::graph {

inline std::string svg_escaped(const std::string& s) {
  std::string r;
  for (char c : s)
    r += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return r;
}

struct Svg {
  std::string body;

  void text(double x, double y, const std::string& s, const char* style = "", const char* anchor = "start") {
    body += formatted("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, style,
                      svg_escaped(s));
  }
  // title: what is shown when it is pointed at.
  void rect(double x, double y, double width, double height, const std::string& style, const std::string& title = "") {
    body +=
        formatted("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" {}", x, y, width, height, style);
    body += title.empty() ? "/>\n" : formatted("><title>{}</title></rect>\n", svg_escaped(title));
  }
  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    body += formatted("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
  }
  void path(const std::string& d, const std::string& style, const std::string& title = "") {
    body += formatted("<path d=\"{}\" {}", d, style);
    body += title.empty() ? "/>\n" : formatted("><title>{}</title></path>\n", svg_escaped(title));
  }
  std::string page(double width, double height) const {
    return formatted("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" viewBox=\"0 0 "
                     "{:.0f} {:.0f}\" "
                     "font-family=\"sans-serif\" font-size=\"13\">\n<style>.axis {{ fill: #555; font-size: 11px; }} "
                     ".note {{ fill: #333; font-size: 12px; }} .head {{ font-weight: bold; font-size: 15px; }} "
                     ".type {{ fill: #666; font-size: 10px; }} .op {{ font-size: 11px; }} "
                     // Lines that pass behind a text stay clear of its letters.
                     ".over {{ paint-order: stroke; stroke: #fafafa; stroke-width: 4px; stroke-linejoin: round; "
                     "}}</style>\n"
                     "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
                     "markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" "
                     "orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"#777\"/></marker></defs>\n"
                     "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
                     width, height, width, height, body);
  }
};

}  // namespace holon::graph
