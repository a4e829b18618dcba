// Attention. Sizes are small: every layout of every input is run.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  const char* op = "scaled_dot_product_attention";
  Input q = x({3, 2, 5, 4}), k = x({3, 2, 7, 4}), v = x({3, 2, 7, 3});
  add(op, {q, k, v, none(), none()});
  add(op, {q, k, v, none(), none()}, {{"is_causal", true}, {"scale", 0.7}});
  add(op, {q, k, v, mask({5, 7}), none()});
  add(op, {q, k, v, mask({3, 1, 1, 7}), none()});
  add(op, {q, k, v, x({3, 2, 5, 7}), none()}, {}, true);
  add(op, {x({2, 4, 5, 2}), x({2, 2, 3, 2}), x({2, 2, 3, 2}), none(), none()},
      {{"enable_gqa", true}, {"is_causal", true}});
  add(op, {x({2, 4, 3, 2}), x({2, 2, 3, 2}), x({2, 2, 3, 2}), x({3, 3}), none()}, {{"enable_gqa", true}});
  add(op, {x({5, 4}), x({3, 4}), x({3, 2}), none(), none()});
  add(op, {x({2, 5, 4}), x({2, 3, 4}), x({2, 3, 2}), none(), none()});
  add(op, {x({2, 3, 2, 5, 4}), x({2, 3, 2, 3, 4}), x({2, 3, 2, 3, 2}), mask({5, 3}), none()});
  add(op, {x({2, 3, 2, 5, 2}), x({2, 3, 1, 3, 2}), x({2, 3, 2, 3, 2}), mask({3, 2, 1, 3}), none()});
  // Of one sequence: windows and documents.
  Input qs = x({2, 4, 5, 2}), ks = x({2, 2, 5, 2});
  add(op, {qs, ks, ks, none(), none()}, {{"enable_gqa", true}, {"is_causal", true}, {"window", 2}});
  add(op, {qs, ks, ks, none(), ints({2, 5}, 0, 2)}, {{"enable_gqa", true}});
  add(op, {qs, ks, ks, mask({2, 1, 1, 5}), ints({1, 5}, 0, 2, int32)},
      {{"enable_gqa", true}, {"is_causal", true}, {"window", 3}});
  add("attention_flash", {qs, ks, ks, none(), ints({2, 5}, 0, 2)}, {{"is_causal", true}, {"scale", 0.5}, {"window", 3}},
      false);
  add("attention_backward",
      {x({2, 4, 5, 2}), qs, ks, ks, x({2, 4, 5, 2}), x({2, 4, 5}, 2, 4), none(), ints({1, 5}, 0, 2)},
      {{"is_causal", true}, {"scale", 0.5}, {"window", 3}});
  Attributes plain{{"is_causal", false}, {"scale", 0.5}}, causal{{"is_causal", true}, {"scale", 0.5}};
  for (auto& attrs : {plain, causal}) add("attention_flash", {q, k, v, none(), none()}, attrs, false);
  add("attention_flash", {x({2, 4, 3, 2}), x({2, 2, 3, 2}), x({2, 2, 3, 2}), mask({2, 1, 3, 3}), none()}, plain, false);
  add("attention_flash", {q, k, v, x({1, 2, 1, 7}), none()}, plain, false);
  auto backward = [&](const Attributes& attrs, Input m) {
    add("attention_backward", {x({3, 2, 5, 3}), q, k, v, x({3, 2, 5, 3}), x({3, 2, 5}, 2, 4), m, none()}, attrs);
  };
  backward(plain, none());
  backward(causal, none());
  backward(plain, mask({3, 1, 5, 7}));
  add("attention_backward",
      {x({2, 4, 3, 2}), x({2, 4, 3, 2}), x({2, 2, 5, 2}), x({2, 2, 5, 2}), x({2, 4, 3, 2}), x({2, 4, 3}, 2, 4), none(),
       none()},
      plain);
  // With the draw given, it is a function like any other.
  Attributes dropped{{"is_causal", false}, {"scale", 0.5}, {"dropout_p", 0.4}, {"seed", 5}, {"counter", 3}};
  add("attention_dropout", {q, k, v, none(), none()}, dropped, false);
  add("attention_dropout", {x({2, 4, 3, 2}), x({2, 2, 70, 2}), x({2, 2, 70, 2}), mask({1, 1, 3, 70}), none()}, dropped,
      false);
  add("attention_dropout_backward", {x({3, 2, 5, 3}), q, k, v, x({3, 2, 5, 3}), x({3, 2, 5}, 2, 4), none(), none()},
      dropped);
});

}  // namespace holon::testing
