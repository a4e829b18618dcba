#include "holon/contract/site.h"

#include <cctype>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/core/communicator.h"

namespace holon::contract {

namespace {

// A program's file as it was when it was first looked at.
struct Source {
  std::vector<std::string> lines;  // single-spaced
  std::set<std::string, std::less<>> texts;
  bool read = false;
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

struct Sites {
  std::unordered_map<std::string, const Site*, TextHash, std::equal_to<>> by_place;
  std::unordered_map<uint64_t, const Site*> by_number;
  std::map<std::tuple<std::string, std::string, std::string>, std::unique_ptr<Site>> all;
  std::map<std::string, Source> sources;
};

Sites& sites() { return Context::current().part<Sites>(); }

const Source& source_of(const std::string& path) {
  auto [it, fresh] = sites().sources.try_emplace(path);
  if (!fresh) return it->second;
  std::ifstream file(path);
  it->second.read = file.is_open();
  for (std::string line; std::getline(file, line);) {
    it->second.lines.push_back(single_spaced(line));
    it->second.texts.insert(it->second.lines.back());
  }
  return it->second;
}

const Site* find(std::string_view place) {
  Sites& all = sites();
  if (auto known = all.by_place.find(place); known != all.by_place.end()) return known->second;
  Site made;
  const size_t colon = place.rfind(':');
  const char* end = place.data() + place.size();
  int line = 0;
  const bool numbered = colon != std::string_view::npos &&
      std::from_chars(place.data() + colon + 1, end, line).ptr == end && colon + 1 < place.size();
  if (numbered) {
    made.path = place.substr(0, colon);
    made.file = made.path.substr(made.path.find_last_of('/') + 1);
    made.line = line;
    if (auto function = blocking_hooks().function) {
      char name[256];
      function(name, sizeof name);
      made.function = name;
    }
    const Source& source = source_of(made.path);
    made.text = line > 0 && to_size(line) <= source.lines.size() ? at_index(source.lines, line - 1)
                                                                 : fmt::format("line {}", line);
  } else {
    made.text = single_spaced(place);
  }
  auto& slot = all.all[{made.file, made.function, made.text}];
  if (!slot) slot = std::make_unique<Site>(std::move(made));
  all.by_place.emplace(place, slot.get());
  return slot.get();
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

}  // namespace

std::string single_spaced(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (space && (out.empty() || out.back() == ' ')) continue;
    out += space ? ' ' : c;
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string Site::str() const { return fmt::format("{}  {}  {}", or_dash(file), or_dash(function), or_dash(text)); }

std::string Site::where() const {
  if (file.empty()) return text.empty() ? "a line that is not known" : text;
  return fmt::format("{}{}{}: {}", file, line > 0 ? fmt::format(":{}", line) : "",
                     function.empty() || function == "<module>" ? "" : ", in " + function, text);
}

const Site* current_site() {
  const Site** known = nullptr;
  if (auto place = blocking_hooks().place)
    if (const uint64_t number = place()) {
      known = &sites().by_number.try_emplace(number, nullptr).first->second;
      if (*known) return *known;
    }
  char text[512] = "";
  if (auto where = blocking_hooks().where) where(text, sizeof text);
  const Site* site = find(text[0] ? text : comm::call_site());
  if (known && text[0]) *known = site;
  return site;
}

const Site* site_at(std::string_view file_and_line) { return find(file_and_line); }

bool still_there(const Site& site, std::string_view text, std::string_view function) {
  const Source& source = source_of(site.path);
  if (!source.read) return true;
  if (!source.texts.contains(text)) return false;
  if (function.empty() || function == "<module>") return true;
  const std::string_view last = function.substr(function.find_last_of('.') + 1);
  if (last.starts_with("<")) return true;
  for (const char* word : {"def ", "async def "})
    for (auto it = source.texts.lower_bound(word + std::string(last)); it != source.texts.end(); ++it) {
      if (!it->starts_with(word + std::string(last))) break;
      const size_t after = std::string_view(word).size() + last.size();
      if (after < it->size() && ((*it)[after] == '(' || (*it)[after] == ' ' || (*it)[after] == '[')) return true;
    }
  return false;
}

}  // namespace holon::contract
