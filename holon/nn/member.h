// Members: variables that a module has registered. A child, a parameter or a buffer is one variable in each handle of
// its module, and all of these hold the same: an assignment to one changes the module, as in Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>

#include "holon/tensor/tensor.h"

namespace holon::nn {

class Module;

namespace detail {

struct Registration;
enum class MemberKind : uint8_t { kModule, kParameter, kBuffer };

// The object whose constructor registers something: a variable is its member if it is inside. type: of what is there.
struct Registrar {
  const void* begin = nullptr;
  size_t size_bytes = 0;
  const std::type_info* type = nullptr;  // nullptr: not known, and neither is the size
};

// What a variable knows about where it is registered. One that is copied or moved is a member where it is at the same
// place in another handle of the module; elsewhere it is an ordinary variable.
class Member {
 public:
  Member() = default;
  Member(const Member& from) noexcept {
    if (from.registration_) join(from.registration_);
  }
  Member& operator=(const Member&) = delete;  // by the class: it may change the module
  ~Member() {
    if (registration_) leave();
  }

 protected:
  // The registration that an assignment to this variable is for; nullptr: none, since the variable is not a member (any
  // more).
  Registration* registered() const;
  // After an assignment to an ordinary variable.
  void join_as(const Member& from);
  void leave() noexcept;

  std::shared_ptr<Registration> registration_;

 private:
  friend struct Registration;
  void join(const std::shared_ptr<Registration>& registration) noexcept;
};

}  // namespace detail

// A tensor of a module's state, a parameter or a buffer, as a member of its class:
//   struct Scale : nn::Layer<Scale> {
//     nn::Parameter factor;
//     explicit Scale(int64_t n) { factor = register_parameter("factor", ones({n})); }
//     Tensor forward(const Tensor& x) const { return x * factor; }
//   };
// An assignment to a registered one registers the new tensor in place of the old, for all handles of the module:
// `decoder.weight = encoder.weight` ties them. Errors then: those of Module::replace_parameter() and replace_buffer().
// (A plain Tensor may hold a parameter, too, but C++ does not tell anyone that it is assigned to: the module keeps the
// old tensor.)
class ModuleTensor : public Tensor, private detail::Member {
 public:
  ModuleTensor() = default;
  ModuleTensor(Tensor t) : Tensor(std::move(t)) {}  // NOLINT(google-explicit-constructor)
  ModuleTensor(const ModuleTensor&) = default;
  ModuleTensor(ModuleTensor&& o) noexcept : Tensor(o), Member(o) {}
  ModuleTensor& operator=(const ModuleTensor& o);
  ModuleTensor& operator=(const Tensor& t);

 private:
  friend class Module;
};
using Parameter = ModuleTensor;
using Buffer = ModuleTensor;

}  // namespace holon::nn
