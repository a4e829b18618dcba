#include "holon/registry/attr_name.h"

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "holon/base/index.h"
#include "holon/registry/loading.h"

namespace holon {

namespace {

struct Names {
  std::deque<std::string> texts;  // by number; a deque's elements stay where they are
  std::map<std::string, int, std::less<>> numbers;
  std::set<std::string> read;
  std::shared_mutex mutex;
};
Names& names() {
  static auto* n = new Names;
  return *n;
}

}  // namespace

const std::string& AttrName::text() const {
  std::shared_lock lock(names().mutex);
  return at_index(names().texts, number_);
}

AttrName AttrName::of(std::string_view text) {
  Names& n = names();
  std::unique_lock lock(n.mutex);
  if (auto known = n.numbers.find(text); known != n.numbers.end()) return AttrName(known->second);
  const int number = static_cast<int>(n.texts.size());
  n.texts.emplace_back(text);
  n.numbers.emplace(text, number);
  return AttrName(number);
}

AttrName AttrName::read(std::string_view text) {
  {
    std::unique_lock lock(names().mutex);
    names().read.emplace(text);
  }
  if (auto* loading = detail::Loading::current()) loading->reads.emplace_back(text);
  return of(text);
}

std::vector<std::string> AttrName::all_read() {
  std::shared_lock lock(names().mutex);
  return {names().read.begin(), names().read.end()};
}

}  // namespace holon
