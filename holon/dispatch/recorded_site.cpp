#include "holon/dispatch/recorded_site.h"

#include <map>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"

namespace holon {

namespace {

constexpr size_t kMost = 65536;  // as the header says

struct Sites {
  std::map<uint64_t, std::string> of;  // by the node's number
};

}  // namespace

void detail::keep_recorded_site(const Node& node) {
  auto where = blocking_hooks().where;
  if (!where) return;
  char text[512] = "";
  where(text, sizeof text);
  if (!text[0]) return;
  auto& sites = Context::current().part<Sites>().of;
  sites[node.sequence] = text;
  if (sites.size() > kMost) sites.erase(sites.begin());
}

std::string recorded_text(const Node& node) {
  auto& sites = Context::current().part<Sites>().of;
  auto at = sites.find(node.sequence);
  return at == sites.end() ? node.name() : fmt::format("{}, recorded at {}", node.name(), at->second);
}

}  // namespace holon
