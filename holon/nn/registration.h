// What a module keeps about the variables that are its members. Header of nn/'s own sources.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "holon/base/fork.h"
#include "holon/nn/module.h"

namespace holon::nn::detail {

// Guards handles, registrations and their members of all modules: handles of one may be on several threads.
ProcessMutex& members_mutex();

// Of one module. handles: those that exist; kept once something is registered.
struct Registrations {
  std::atomic<bool> tracked = false;
  std::vector<const Module*> handles;
  std::vector<std::shared_ptr<Registration>> all;

  Registrations() = default;
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;
  ~Registrations();
  // Pre: the mutex is held.
  bool has(const void* handle) const;
};

// A name under which a module has something, and the variables that hold it.
struct Registration {
  enum class Place : uint8_t { kElsewhere, kMember, kPerhaps };

  Registrations* owner;  // nullptr: the module is gone
  MemberKind kind;
  std::string name;
  const Module* handle;        // that registered it
  const std::type_info* type;  // of that handle then
  Registrar registrar;
  bool exact;            // the registrar is the whole object
  bool shared = false;   // an element of a list that the handles share, wherever that is
  bool placed = false;   // offset is known
  bool certain = true;   // the variable is inside the object
  ptrdiff_t offset = 0;  // from a handle to its member
  std::vector<Member*> members;
  void (*assign)(Module& member, const Module& value) = nullptr;
  bool (*accepts)(const Module& value) = nullptr;

  // Where a variable is, seen from the object that registers.
  Place place_of(const void* variable) const;
  // Makes the variable a member if it is inside, or may be. Pre: the mutex is held.
  void place(Member& variable, const std::shared_ptr<Registration>& self);
  // Whether there is a handle of the module of which the variable would be this member. Pre: the mutex is held.
  bool has_handle_for(const Member& variable) const;
  // The members in handles that exist, except one.
  std::vector<Member*> others(const Member* one);
};

}  // namespace holon::nn::detail
