#include "holon/nn/member.h"

#include <algorithm>
#include <functional>

#include "holon/base/error.h"
#include "holon/nn/registration.h"

namespace holon::nn {

namespace detail {

ProcessMutex& members_mutex() {
  static auto* mutex = new ProcessMutex;
  return *mutex;
}

namespace {
ptrdiff_t distance(const void* from, const void* to) {
  return reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from);
}
}  // namespace

Registrations::~Registrations() {
  if (all.empty()) return;
  std::lock_guard lock(members_mutex());
  for (auto& r : all) r->owner = nullptr;
}

bool Registrations::has(const void* handle) const {
  return std::any_of(handles.begin(), handles.end(), [&](auto* h) { return h == handle; });
}

Registration::Place Registration::place_of(const void* variable) const {
  const ptrdiff_t at = distance(registrar.begin, variable);
  if (registrar.begin && at >= 0 && at < static_cast<ptrdiff_t>(registrar.size_bytes)) return Place::kMember;
  return exact ? Place::kElsewhere : Place::kPerhaps;
}

void Registration::place(Member& variable, const std::shared_ptr<Registration>& self) {
  const Place found = place_of(&variable);
  if (found == Place::kElsewhere || !owner->has(handle)) return;
  placed = true;
  certain = found == Place::kMember;
  offset = distance(handle, &variable);
  variable.registration_ = self;
  members.push_back(&variable);
}

bool Registration::has_handle_for(const Member& variable) const {
  if (!owner) return false;
  if (shared) return std::find(members.begin(), members.end(), &variable) != members.end();
  if (!placed) return false;
  const intptr_t at = reinterpret_cast<intptr_t>(&variable) - offset;
  return std::any_of(owner->handles.begin(), owner->handles.end(),
                     [&](auto* h) { return reinterpret_cast<intptr_t>(h) == at; });
}

std::vector<Member*> Registration::others(const Member* one) {
  std::lock_guard lock(members_mutex());
  std::vector<Member*> list;
  for (Member* m : members)
    if (m != one && has_handle_for(*m)) list.push_back(m);
  return list;
}

void Member::join(const std::shared_ptr<Registration>& r) noexcept {
  std::lock_guard lock(members_mutex());
  if (!r->owner || r->shared) return;
  if (!r->placed) return r->place(*this, r);
  const intptr_t at = reinterpret_cast<intptr_t>(this) - r->offset;
  for (const Module* h : r->owner->handles) {
    // One that was cut down to its base class has no members behind it.
    if (reinterpret_cast<intptr_t>(h) != at || typeid(*h) != *r->type) continue;
    registration_ = r;
    r->members.push_back(this);
    return;
  }
}

void Member::join_as(const Member& from) {
  std::shared_ptr<Registration> before = registration_, r = from.registration_;
  if (before == r && before) return;
  if (before) leave();
  if (!r) return;
  bool same = false;
  {
    std::lock_guard lock(members_mutex());
    // The object was one of the same class before: its dynamic type need not be that of the registering class.
    same = before && before->placed && r->placed && before->offset == r->offset && r->has_handle_for(*this);
    if (same) {
      registration_ = r;
      r->members.push_back(this);
    }
  }
  if (!same) join(r);
}

void Member::leave() noexcept {
  std::lock_guard lock(members_mutex());
  std::erase(registration_->members, this);
  registration_.reset();
}

Registration* Member::registered() const {
  if (!registration_) return nullptr;
  std::lock_guard lock(members_mutex());
  return registration_->has_handle_for(*this) ? registration_.get() : nullptr;
}

}  // namespace detail

ModuleTensor& ModuleTensor::operator=(const ModuleTensor& o) {
  if (this == &o) return *this;
  if (detail::Registration* r = registered()) {
    Module::assign_tensor(*r, o, this);
    return *this;
  }
  Tensor::operator=(o);
  join_as(o);
  return *this;
}

ModuleTensor& ModuleTensor::operator=(const Tensor& t) {
  if (detail::Registration* r = registered())
    Module::assign_tensor(*r, t, this);
  else
    Tensor::operator=(t);
  return *this;
}

}  // namespace holon::nn
