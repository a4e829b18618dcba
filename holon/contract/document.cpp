#include "holon/contract/document.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::contract {

namespace {

constexpr std::string_view kFirst = "holon contract 1";
constexpr std::string_view kNote = "  # ";
constexpr std::string_view kLayouts = "-- layouts", kPaths = "-- paths";
constexpr const char* kKinds[] = {"start", "step", "end", "graph"};

std::string_view without_note(std::string_view line) { return line.substr(0, line.find(kNote)); }

int whole_number(std::string_view text) {
  int n = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, n).ptr != end || n < 1) fail_value("\"{}\" is not a number from 1", text);
  return n;
}

Section parse_title(std::string_view line) {
  Section s;
  std::string_view note;
  if (const size_t at = line.find(kNote); at != std::string_view::npos) {
    note = line.substr(at + kNote.size());
    line = line.substr(0, at);
  }
  line.remove_prefix(3);
  const size_t space = line.find("  ");
  const std::string_view kind = line.substr(0, space);
  const auto known = std::find(std::begin(kKinds), std::end(kKinds), kind);
  if (known == std::end(kKinds)) fail_value("\"{}\" is not a section: start, step, end or graph", kind);
  s.kind = static_cast<Section::Kind>(known - std::begin(kKinds));
  if (space != std::string_view::npos) s.name = line.substr(space + 2);
  s.times = 1;
  std::from_chars(note.data(), note.data() + note.size(), s.times);
  return s;
}

Section::Layouts parse_layouts(std::string_view line) {
  const auto columns = columns_of(line);
  if (columns.size() != 3 || !columns[0].starts_with("x"))
    fail_value("a choice of layouts has how often, the call and the layouts taken, with two spaces between");
  // "(S(0), B)" of an op's inputs, or "(S(0), B) -> (P)" with its results.
  const size_t arrow = columns[2].find(" -> ");
  parse_operands(columns[2].substr(0, arrow));
  if (arrow != std::string_view::npos) parse_operands(columns[2].substr(arrow + 4));
  return {std::string(columns[1]), std::string(columns[2]), whole_number(columns[0].substr(1))};
}

std::string known(std::string_view text) { return text == "-" ? "" : std::string(text); }

Site parse_site(std::string_view line) {
  Site s;
  const size_t at = line.find(kNote);
  if (at != std::string_view::npos) {
    const std::string_view number = line.substr(at + kNote.size());
    std::from_chars(number.data(), number.data() + number.size(), s.line);
  }
  const auto columns = columns_of(line.substr(0, at));
  if (columns.size() != 3) fail_value("a line of the program has its file, function and text, with two spaces between");
  s.file = known(columns[0]);
  s.function = known(columns[1]);
  s.text = known(columns[2]);
  return s;
}

}  // namespace

std::string Section::title() const {
  return name.empty() ? kKinds[static_cast<int>(kind)] : fmt::format("{}  {}", kKinds[static_cast<int>(kind)], name);
}

void Section::add(const Site& site, Entry entry) {
  auto at = std::find_if(lines.begin(), lines.end(), [&](const Lines& l) { return l.site == site; });
  if (at == lines.end()) at = lines.insert(lines.end(), {site, {}});
  const std::string key = entry.key();
  for (Entry& e : at->entries)
    if (e.key() == key) {
      e.least += entry.least;
      e.most += entry.most;
      return;
    }
  at->entries.push_back(std::move(entry));
}

const Entry* Section::find(const Site& site, std::string_view key) const {
  for (const Lines& l : lines) {
    if (!(l.site == site)) continue;
    for (const Entry& e : l.entries)
      if (e.key() == key) return &e;
  }
  return nullptr;
}

const Section* Document::section(Section::Kind kind, std::string_view name) const {
  for (const Section& s : sections)
    if (s.kind == kind && s.name == name) return &s;
  return nullptr;
}

std::string Document::str() const {
  std::string text = fmt::format("{}\nranks {}, hosts {}\nmachine {}\n", kFirst, ranks, hosts, machine);
  for (const Section& s : sections) {
    text += "\n== " + s.title();
    if (s.kind == Section::Kind::kStep) text += fmt::format("{}{} recorded", kNote, s.times);
    text += "\n";
    for (const Lines& l : s.lines) {
      text += "\n" + l.site.str() + (l.site.line > 0 ? fmt::format("{}{}", kNote, l.site.line) : "") + "\n";
      for (const Entry& e : l.entries) text += e.str() + "\n";
    }
    if (!s.layouts.empty()) text += fmt::format("\n{}\n", kLayouts);
    for (const Section::Layouts& l : s.layouts)
      text += fmt::format("  {:<5}  {}  {}\n", fmt::format("x{}", l.times), l.call, l.taken);
    if (!s.paths.empty()) text += fmt::format("\n{}\n", kPaths);
    for (const Entry& e : s.paths) text += e.str() + "\n";
  }
  return text;
}

Document parse_document(std::string_view text, const std::string& file) {
  Document d;
  size_t number = 0;  // of the line
  std::optional<Context> world;
  std::optional<ContextGuard> in_world;
  auto next = [&](std::string_view* line) {
    ++number;
    if (text.empty()) return false;
    const size_t end = text.find('\n');
    *line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return true;
  };
  std::string_view line, part;  // part: of a graph, below its heading
  try {
    if (!next(&line) || line != kFirst) fail_value("a contract begins with \"{}\"", kFirst);
    if (!next(&line) || !line.starts_with("ranks ") || line.find(", hosts ") == std::string_view::npos)
      fail_value("the second line is ranks N, hosts N");
    const size_t comma = line.find(", hosts ");
    d.ranks = whole_number(line.substr(6, comma - 6));
    d.hosts = whole_number(line.substr(comma + 8));
    if (!next(&line) || !line.starts_with("machine ")) fail_value("the third line is machine FIGURES");
    d.machine = line.substr(8);
    parse_costs(d.machine, {});
    // Placements are of the world that was recorded, whatever the world of the reader.
    world.emplace(0, d.ranks, 0, d.ranks);
    in_world.emplace(*world);
    while (next(&line)) {
      if (line.find_first_not_of(' ') == std::string_view::npos) continue;
      if (line.starts_with("== ")) {
        d.sections.push_back(parse_title(line));
        part = {};
        continue;
      }
      if (d.sections.empty()) fail_value("there is no section (== start) before it");
      Section& s = d.sections.back();
      if (line == kLayouts || line == kPaths) {
        if (s.kind != Section::Kind::kGraph) fail_value("\"{}\" is of a graph, and this section is not", line);
        part = line;
        continue;
      }
      if (line.starts_with(" ") && !part.empty()) {
        if (part == kLayouts)
          s.layouts.push_back(parse_layouts(without_note(line)));
        else
          s.paths.push_back(parse_entry(without_note(line)));
        if (part == kPaths && s.paths.back().kind != Entry::Kind::kMove) fail_value("a path is one of a move");
        continue;
      }
      part = {};
      if (!line.starts_with(" ")) {
        s.lines.push_back({parse_site(line), {}});
        continue;
      }
      if (s.lines.empty()) fail_value("there is no line of the program before it");
      s.lines.back().entries.push_back(parse_entry(without_note(line)));
    }
  } catch (const Error& e) {
    fail_value("contract {}, line {}: {}. Record it again, or undo the edit.", file, number, e.what());
  }
  return d;
}

Document read_document(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in)
    fail_value("contract {}: it cannot be read: {}. Record one with `holon contract record`, or name another file.",
               file, std::strerror(errno));
  std::stringstream text;
  text << in.rdbuf();
  return parse_document(text.str(), file);
}

void write_document(const Document& document, const std::string& file) {
  const std::string temporary = fmt::format("{}.{}.tmp", file, getpid());
  std::ofstream out(temporary, std::ios::binary);
  out << document.str();
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(temporary, file, failed);
  if (!out || failed) {
    const std::string why = failed ? failed.message() : std::strerror(errno);
    std::filesystem::remove(temporary, failed);
    fail_runtime("contract {}: it cannot be written: {}. Name a file in a folder that exists.", file, why);
  }
}

}  // namespace holon::contract
