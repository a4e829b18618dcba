#include "holon/comm/bootstrap/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/settings.h"

namespace holon::comm {

namespace {

struct Interface {
  std::string name;
  Address address;
  std::string ip = address.ip();
};

// IPv4 first. Not those that mean something on one cable only (fe80::).
std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (int family : {AF_INET, AF_INET6})
    for (ifaddrs* a = list; a; a = a->ifa_next) {
      if (!a->ifa_addr || a->ifa_addr->sa_family != family || !(a->ifa_flags & IFF_UP)) continue;
      Address address;
      address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&address.storage, a->ifa_addr, address.size);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6&>(address.storage).sin6_addr))
        continue;
      found.push_back({a->ifa_name, address});
    }
  freeifaddrs(list);
  return found;
}

bool is_own(const Address& a, const std::vector<Interface>& all) {
  return a.loopback() || std::any_of(all.begin(), all.end(), [&](const Interface& i) { return i.ip == a.ip(); });
}

Address everywhere(int port) {
  Address all;
  auto& six = reinterpret_cast<sockaddr_in6&>(all.storage);
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_any;
  all.size = sizeof six;
  all.set_port(port);
  return all;
}

// The named interface's, of the family that others use where it has one.
Interface chosen(const std::string& name, bool ipv4) {
  Interface best;
  for (const Interface& i : interfaces())
    if (i.name == name && (best.name.empty() || (i.address.ipv4() == ipv4 && best.address.ipv4() != ipv4))) best = i;
  if (best.name.empty())
    fail_value("HOLON_NET_INTERFACE=\"{}\": this host has no such interface that is up and has an address. It has: {}.",
               name, list_interfaces());
  return best;
}

}  // namespace

std::string list_interfaces() {
  std::string text;
  for (const Interface& i : interfaces()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", i.name, i.ip);
  return text.empty() ? "none" : text;
}

NetworkAddress network_address(const Address& store, bool several_hosts) {
  if (std::string name = settings::text("HOLON_NET_INTERFACE"); !name.empty())
    return {chosen(name, store.ipv4()).ip, name + ", as HOLON_NET_INTERFACE says", true};
  const auto all = interfaces();
  if (!store.loopback() || !several_hosts) {
    for (const Interface& i : all)
      if (i.ip == store.ip()) return {i.ip, i.name + ", which reaches MASTER_ADDR", true};
    return {store.ip(), "which reaches MASTER_ADDR", true};
  }
  for (const Interface& i : all)
    if (!i.address.loopback())
      return {i.ip, i.name + ", its first interface, as MASTER_ADDR means the host itself there", false};
  return {store.ip(), "it has no other interface that is up", false};
}

std::vector<Address> store_addresses(const std::string& master_addr, int port, bool several_hosts, double limit_s) {
  const auto all = interfaces();
  std::vector<Address> own;
  bool others_reach_it = !several_hosts;
  for (const Address& a : resolve_within(master_addr, port, limit_s))
    if (is_own(a, all)) {
      own.push_back(a);
      others_reach_it |= !a.loopback();
    }
  if (!own.empty() && others_reach_it) return own;
  std::string name = settings::text("HOLON_NET_INTERFACE");
  // It may be an address that this machine knows under another name: a bridge's, a load balancer's.
  if (name.empty()) return {everywhere(port)};
  own.push_back(chosen(name, own.empty() || own[0].ipv4()).address);
  own.back().set_port(port);
  return own;
}

bool is_this_host(const std::string& name, double limit_s) {
  const auto all = interfaces();
  for (const Address& a : resolve_within(name, 0, limit_s))
    if (is_own(a, all)) return true;
  return false;
}

}  // namespace holon::comm
