// What the hosts of a link's two ranks tell each other (device_link.h): who they are, and how large each message is. In
// the control block where they are on one host, else over the network.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "holon/comm/core/world.h"

namespace holon::comm {

class LinkMail {
 public:
  static constexpr size_t kCardBytes = 320;
  virtual ~LinkMail() = default;
  // Gives `mine` to the other side and returns when `theirs` is there. round: 0 or 1, in this order. give_up is asked
  // now and then for a reason to wait no longer, "" if there is none; it is raised.
  virtual void exchange(int round, const void* mine, void* theirs, const std::function<std::string()>& give_up) = 0;
  // The sender. Whether the size of one more message can be told.
  virtual bool has_room(uint64_t number) = 0;
  virtual void tell_size(uint64_t number, uint64_t bytes) = 0;
  // Messages up to this number have left this side's device.
  virtual void note_done(uint64_t) {}
  // The receiver, in the order of the numbers, when the sender has told.
  virtual uint64_t size_of(uint64_t number, const std::function<std::string()>& give_up) = 0;
};

// Pre: one of from and to is the world's rank. key: tells links of the two apart. May wait a moment for a rank that is
// about to do the same.
std::unique_ptr<LinkMail> make_link_mail(World& world, int from, int to, int key);

}  // namespace holon::comm
