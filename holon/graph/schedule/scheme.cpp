#include "holon/graph/schedule/scheme.h"

#include <algorithm>
#include <map>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"

namespace holon::graph {

namespace {

using Known = std::shared_ptr<const Scheme>;

struct Registry {
  ProcessMutex mutex;
  std::map<std::string, Known, std::less<>> by_name;  // aliases too
};

Registry& registry() {
  static auto* r = new Registry;  // never destroyed: static objects and threads may still look names up
  return *r;
}

}  // namespace

std::string enumerated(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}'{}'", i == 0 ? "" : i + 1 < names.size() ? ", " : " and ", names[i]);
  return text;
}

bool register_scheme(Scheme scheme) {
  if (scheme.name.empty()) fail_value("register_scheme: the schedule has no name. Give it one.");
  if (!scheme.lists)
    fail_value("register_scheme: the schedule '{}' has no function that makes its lists of tasks. Set Scheme::lists.",
               scheme.name);
  auto known = std::make_shared<const Scheme>(std::move(scheme));
  std::vector<std::string> names = known->aliases;
  names.insert(names.begin(), known->name);
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == kAutoSchedule)
      fail_value("register_scheme: '{}' lets the library choose among schedules and cannot name one. Choose another "
                 "name.",
                 names[i]);
    if (r.by_name.contains(names[i]) || std::count(names.begin(), names.end(), names[i]) > 1)
      fail_value(
          "register_scheme: there is a schedule '{}' already. Choose another name, or unregister that one first.",
          names[i]);
  }
  for (auto& [name, other] : r.by_name)
    if (known->automatic && other->automatic && other->splits_backward == known->splits_backward)
      fail_value("register_scheme: '{}' means the schedule '{}' already where backwards are{} split. Leave `automatic` "
                 "of '{}' false.",
                 kAutoSchedule, other->name, known->splits_backward ? "" : " not", known->name);
  for (const std::string& name : names) r.by_name.emplace(name, known);
  return true;
}

void unregister_scheme(std::string_view name) {
  const Known known = find_scheme("unregister_scheme", name);
  if (known->name != name)
    fail_value("unregister_scheme: '{}' is another name of '{}'. Unregister it by that name.", name, known->name);
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::erase_if(r.by_name, [&](auto& entry) { return entry.second == known; });
}

Known find_scheme(std::string_view caller, std::string_view name) {
  Registry& r = registry();
  std::vector<std::string> names;
  {
    std::lock_guard lock(r.mutex);
    if (auto it = r.by_name.find(name); it != r.by_name.end()) return it->second;
    for (auto& [other, scheme] : r.by_name)
      if (other == scheme->name) names.push_back(other);
  }
  fail_value("{}: there is no schedule '{}'. There are {}.", caller, name, enumerated(names));
}

Known automatic_scheme(bool splits_backward) {
  for (Known& scheme : schemes())
    if (scheme->automatic && scheme->splits_backward == splits_backward) return scheme;
  fail_value("no schedule with{} split backwards is registered as automatic. Name a schedule instead of '{}'.",
             splits_backward ? "" : "out", kAutoSchedule);
}

std::vector<Known> schemes() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::vector<Known> list;
  for (auto& [name, scheme] : r.by_name)
    if (name == scheme->name) list.push_back(scheme);
  return list;
}

}  // namespace holon::graph
