// Names and layouts of one program's state dict as those of another's, and back: a table of rules.
//
//   KeyMap map({
//       {{"wte"}, {"model.embed_tokens.weight"}},
//       {{"blocks.{i}.up"}, {"model.layers.{i}.mlp.up_proj.weight"}, {.kind = KeyRule::kTranspose}},
//       {{"blocks.{i}.qkv"}, {"model.layers.{i}.q.weight", "model.layers.{i}.k.weight", "model.layers.{i}.v.weight"},
//        {.kind = KeyRule::kJoin, .axis = 0, .parts = {4, 1, 1}}},
//       {{"blocks.{i}.experts"}, {"model.layers.{i}.experts.{e}.weight"}, {.kind = KeyRule::kStack}},
//   });
//   nn::StateDict ours = map.apply(theirs), back = map.inverse().apply(ours);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/nn/module.h"

namespace holon::checkpoint {

// The names `to` are made of the tensors named `from`. In a name, {i} is a number, the same in all names of the rule,
// and {name*} is any text.
struct KeyRule {
  enum Kind {
    kSame,
    kTranspose,  // axis and other are exchanged
    kJoin,       // the tensors of `from`, one after the other along axis, are one
    kSplit,      // one is the tensors of `to`
    kStack,      // those of all numbers that `to` has not ({e}), 0, 1, ..., are one along a new axis
    kUnstack,    // one is those of all numbers that `from` has not
  };
  // What happens to the tensors, and along which axis.
  struct How {
    Kind kind = kSame;
    int axis = 0, other = 1;
    // Of kJoin and kSplit: the sizes along axis, up to a factor; nothing: equal ones.
    std::vector<int64_t> parts = {};
  };
  std::vector<std::string> to, from;
  How how = {};
};

// A tensor, or what is known of it before it is read.
struct NamedShape {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
};

// What a map makes of tensors: one that has this name, dtype and shape.
struct MappedTensor : NamedShape {
  KeyRule::How how;
  std::vector<size_t> from;  // the numbers of the tensors that it is made of, in order
  int64_t begin = 0;         // of kSplit and kUnstack: where its part of the one begins along the axis
};

class KeyMap {
 public:
  // Errors (ValueError), naming the rule: names that its kind cannot have; numbers that are not on both sides.
  explicit KeyMap(std::vector<KeyRule> rules);

  // Works on local and global tensors, on these by ops: collective. Errors (ValueError), naming the tensor: no rule, or
  // more than one, has its name; one that a rule needs with it is missing; two results of one name; sizes or dtypes
  // that the rule does not fit.
  nn::StateDict apply(const nn::StateDict& state) const;
  // What apply() makes of tensors of these names. The same errors.
  std::vector<MappedTensor> resolve(const std::vector<NamedShape>& tensors) const;
  // The map that leads back: inverse().apply(apply(x)) is x, in another order perhaps.
  KeyMap inverse() const;
  const std::vector<KeyRule>& rules() const { return rules_; }

 private:
  std::vector<KeyRule> rules_;
};

}  // namespace holon::checkpoint
