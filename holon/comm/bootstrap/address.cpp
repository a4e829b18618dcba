#include "holon/comm/bootstrap/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "holon/comm/bootstrap/socket.h"

namespace holon::comm {

namespace {

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  else if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

bool is_loopback(const std::string& text) { return text.starts_with("127.") || text == "::1"; }

// The first address of an interface, or of any that is up and no loopback.
std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (int family : {AF_INET, AF_INET6})
    for (ifaddrs* a = list; a && found.empty(); a = a->ifa_next) {
      if (!a->ifa_addr || a->ifa_addr->sa_family != family || !(a->ifa_flags & IFF_UP)) continue;
      if (name.empty() ? !(a->ifa_flags & IFF_LOOPBACK) : name == a->ifa_name) found = text_of(a->ifa_addr);
    }
  freeifaddrs(list);
  return found;
}

}  // namespace

std::string network_address(const std::string& master_addr) {
  if (std::string name = settings::text("HOLON_NET_INTERFACE"); !name.empty()) {
    std::string address = address_of_interface(name);
    if (address.empty())
      fail_value(
          "HOLON_NET_INTERFACE=\"{}\": this host has no such interface that is up and has an address. `ip address` "
          "lists them.",
          name);
    return address;
  }
  // The system says from where it would send; nothing is sent.
  Address to = resolve(master_addr, 9);
  Fd probe(socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage mine{};
  socklen_t size = sizeof mine;
  std::string address;
  if (probe && connect(probe.get(), reinterpret_cast<sockaddr*>(&to.storage), to.size) == 0 &&
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&mine), &size) == 0)
    address = text_of(reinterpret_cast<sockaddr*>(&mine));
  if (!address.empty() && !is_loopback(address)) return address;
  std::string other = address_of_interface("");
  return other.empty() ? address : other;
}

}  // namespace holon::comm
